//! Items of a task file, one JSON object a line, and how an answer is scored.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// Letters that name choices in data sets.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A line that is no item.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct ItemError {
    /// Line of the file, from 1.
    pub line: usize,
    /// What is wrong and what to write.
    pub reason: String,
}

/// One question with its truth.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The question, as the file has it.
    pub text: String,
    /// How it is answered.
    pub question: Question,
}

/// How a question is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// By a number, as in GSM8K. `solution` is the worked answer, for examples in the prompt.
    Number {
        /// The true number.
        truth: String,
        /// The worked answer.
        solution: String,
    },
    /// By the most likely of several texts.
    Choice {
        /// The texts.
        choices: Vec<String>,
        /// Index of the true one.
        truth: usize,
    },
}

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "prompt", alias = "query")]
    question: String,
    #[serde(default)]
    choices: Option<Vec<String>>,
    #[serde(alias = "gold", alias = "label")]
    answer: Value,
}

/// The items of a file: `{"question", "answer": "... #### 18"}` for numbers, and `{"question",
/// "choices": [...], "answer": 2 or "C"}` for choices. Empty lines are passed by. Errors name the
/// line.
pub fn parse_items(text: &str) -> Result<Vec<Item>, ItemError> {
    let mut items = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let bad = |reason: String| ItemError {
            line: index + 1,
            reason,
        };
        let parsed: Line = serde_json::from_str(line).map_err(|e| bad(e.to_string()))?;
        items.push(item(parsed).map_err(bad)?);
    }
    Ok(items)
}

fn item(line: Line) -> Result<Item, String> {
    let question = match line.choices {
        Some(choices) => {
            if choices.len() < 2 {
                return Err("`choices` needs two texts at least".to_owned());
            }
            let truth = choice_index(&line.answer).filter(|&i| i < choices.len());
            let truth = truth.ok_or_else(|| {
                let n = choices.len();
                format!(
                    "`answer` must be the index 0 to {} of a choice or its letter",
                    n - 1
                )
            })?;
            Question::Choice { choices, truth }
        }
        None => {
            let solution = match &line.answer {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err("`answer` must be a text or a number".to_owned()),
            };
            let truth = numeric_answer(&solution)
                .ok_or("`answer` holds no number, and there are no `choices`")?;
            Question::Number { truth, solution }
        }
    };
    Ok(Item {
        text: line.question,
        question,
    })
}

fn choice_index(answer: &Value) -> Option<usize> {
    match answer {
        Value::Number(number) => usize::try_from(number.as_u64()?).ok(),
        Value::String(text) => match text.trim() {
            letter if letter.len() == 1 && LETTERS.contains(letter) => LETTERS.find(letter),
            digits => digits.parse().ok(),
        },
        _ => None,
    }
}

/// The number that a text gives as its answer: the first after `####`, or else the last one.
/// Thousands separators, a sign in front of it, and zeros that change nothing are normalised:
/// `$1,234.50` is `1234.5`.
pub fn numeric_answer(text: &str) -> Option<String> {
    match text.split_once("####") {
        Some((_, after)) => numbers(after).into_iter().next(),
        None => numbers(text).into_iter().next_back(),
    }
}

/// All numbers of a text, normalised.
fn numbers(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        if !digit(at) {
            at += 1;
            continue;
        }
        let from = at;
        while digit(at) || (matches!(chars.get(at), Some(',' | '.')) && digit(at + 1)) {
            at += 1;
        }
        // A dash after a letter or digit joins or subtracts: `16-3` has no negative number.
        let before = |back: usize| from.checked_sub(back).map(|i| chars[i]);
        let money = usize::from(before(1) == Some('$'));
        let dash = matches!(before(1 + money), Some('-' | '\u{2212}'));
        let joined = before(2 + money).is_some_and(|c| c.is_alphanumeric() || c == ')');
        let plain: String = chars[from..at].iter().filter(|c| **c != ',').collect();
        found.push(normal(dash && !joined, &plain));
    }
    found
}

fn normal(negative: bool, digits: &str) -> String {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = fraction.trim_end_matches('0');
    let mut text = String::new();
    if negative && (whole != "0" || !fraction.is_empty()) {
        text.push('-');
    }
    text.push_str(whole);
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_answers_give_them() {
        for (text, number) in [
            ("So she makes 9 * 2 = $18.\n#### 18", "18"),
            ("#### 70,000", "70000"),
            ("#### $1,234.50 and 7", "1234.5"),
            ("The answer is 42.", "42"),
            ("16-3=13", "13"),
            ("it fell to -3", "-3"),
            ("a loss of -$20", "-20"),
            ("0.50", "0.5"),
            ("007", "7"),
            ("-0.0", "0"),
        ] {
            assert_eq!(numeric_answer(text).as_deref(), Some(number), "{text}");
        }
        assert_eq!(numeric_answer("none"), None);
        assert_eq!(numeric_answer("12 before #### nothing"), None);
        assert_eq!(numbers("16-3, 2 and -4"), ["16", "3", "2", "-4"]);
    }

    #[test]
    fn both_kinds_of_items_are_read() {
        let text = "{\"question\": \"Two and two?\", \"answer\": \"2+2=4\\n#### 4\"}\n\n\
                    {\"question\": \"Sky?\", \"choices\": [\"red\", \"blue\"], \"answer\": \"B\"}\n\
                    {\"prompt\": \"Sky?\", \"choices\": [\"red\", \"blue\"], \"gold\": 0}\n";
        let items = parse_items(text).unwrap();
        assert_eq!(items.len(), 3);
        let Question::Number { truth, .. } = &items[0].question else {
            panic!("{items:?}");
        };
        assert_eq!(truth, "4");
        let truth = |item: &Item| match &item.question {
            Question::Choice { truth, .. } => Some(*truth),
            Question::Number { .. } => None,
        };
        assert_eq!((truth(&items[1]), truth(&items[2])), (Some(1), Some(0)));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (line, part) in [
            ("{\"question\": \"x\"}", "answer"),
            (
                "{\"question\": \"x\", \"answer\": \"no number\"}",
                "no number",
            ),
            (
                "{\"question\": \"x\", \"choices\": [\"a\", \"b\"], \"answer\": \"C\"}",
                "0 to 1",
            ),
            (
                "{\"question\": \"x\", \"choices\": [\"a\"], \"answer\": 0}",
                "two texts",
            ),
            ("not json", "expected"),
        ] {
            let error = parse_items(&format!("\n{line}\n")).unwrap_err();
            assert_eq!(error.line, 2);
            assert!(error.reason.contains(part), "{line}: {error}");
        }
    }
}
