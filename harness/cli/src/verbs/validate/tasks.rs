//! `prefillbench validate tasks`: does an arm lose answers that the other one gets?

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use pb_contract::TokenId;
use pb_judge::tasks::{
    Item, PairedScores, PairedVerdict, Perplexity, Question, Share, TaskLimits, numeric_answer,
    parse_items,
};
use pb_judge::verdict::Verdict;
use serde::Serialize;

use super::ask::{Asker, Source};
use super::{prompts, stopped, waited};
use crate::args::TasksArgs;
use crate::output;
use crate::progress::Progress;
use crate::validate::table::word;

/// Version of the document; raised when a reader would misread an old one.
const SCHEMA_VERSION: u32 = 1;

/// Most likely tokens to ask for: the true one comes with any list.
const LISTED: usize = 2;

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Items at most: each costs two requests or more.
const MAX_ITEMS: usize = 100_000;

/// Where an answer to a question with a number ends: the model begins a question of its own.
const STOPS: [&str; 2] = ["Question:", "\n\n\n"];

/// The document.
#[derive(Clone, Debug, Serialize)]
struct Document {
    schema_version: u32,
    kind: &'static str,
    base_url: String,
    against: String,
    model: String,
    shots: usize,
    scores: Option<PairedVerdict>,
    /// Items that B lost, by their place among those asked, from 0.
    lost_items: Vec<usize>,
    perplexity: Option<Perplexity>,
    verdict: Verdict,
    exit_code: u8,
}

/// Asks both arms and prints the result.
pub(super) fn run(args: &TasksArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let document = waited(ask(args, &progress));
    progress.clear();
    let Some(document) = document? else {
        return Ok(stopped(args.json));
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::table(&document.text())?;
    }
    Ok(ExitCode::from(document.exit_code))
}

async fn ask(args: &TasksArgs, progress: &Progress) -> Result<Document> {
    ensure!(
        args.items <= MAX_ITEMS,
        "--items {}: at most {MAX_ITEMS}",
        args.items
    );
    let limits = TaskLimits {
        margin: args.margin,
        delta_nll_margin: args.nll_margin,
        ..TaskLimits::default()
    };
    let asker = |flag, url| Asker::new((flag, url), &args.model, LISTED, &args.connect);
    let mut a = asker("--base-url", &args.base_url)?;
    let mut b = asker("--against", &args.against)?;
    let items = args.tasks.as_deref().map(|path| items(path, args));
    let items = items.transpose()?;
    let text = args
        .perplexity
        .as_deref()
        .map(|path| read(path, "--perplexity"));
    let text = text.transpose()?;
    a.greet().await?;
    b.greet().await?;
    let (mut scores, mut lost_items) = (None, Vec::new());
    if let Some((examples, items)) = &items {
        let paired = paired((&a, &b), examples, items, args, progress).await?;
        let lost = paired.right.iter().enumerate().filter(|(_, p)| p.0 && !p.1);
        lost_items = lost.map(|(index, _)| index).collect();
        scores = Some(paired.judge(limits)?);
    }
    let mut perplexity = None;
    if let Some(text) = &text {
        perplexity = Some(likelihoods((&a, &b), text, args, limits, progress).await?);
    }
    let verdict = both(&scores, &perplexity);
    Ok(Document {
        schema_version: SCHEMA_VERSION,
        kind: "task_validation",
        base_url: a.url,
        against: b.url,
        model: args.model.clone(),
        shots: args.shots,
        scores,
        lost_items,
        perplexity,
        exit_code: verdict.exit_code(),
        verdict,
    })
}

fn both(scores: &Option<PairedVerdict>, perplexity: &Option<Perplexity>) -> Verdict {
    let (mut broken, mut open) = (Vec::new(), Vec::new());
    let all = [
        ("scores", scores.as_ref().map(|s| &s.verdict)),
        ("perplexity", perplexity.as_ref().map(|p| &p.verdict)),
    ];
    for (name, verdict) in all {
        let (list, said) = match verdict {
            None | Some(Verdict::Pass) => continue,
            Some(Verdict::Fail { reasons }) => (&mut broken, reasons),
            Some(Verdict::Inconclusive { why }) => (&mut open, why),
        };
        list.extend(said.iter().map(|reason| format!("{name}: {reason}")));
    }
    Verdict::from_findings(broken, open)
}

fn read(path: &Path, flag: &str) -> Result<String> {
    let place = || format!("{flag} {}", path.display());
    let size = std::fs::metadata(path).with_context(place)?.len();
    ensure!(
        size <= MAX_FILE_BYTES,
        "{}: {size} bytes are more than the {MAX_FILE_BYTES} that are read",
        place()
    );
    std::fs::read_to_string(path).with_context(place)
}

/// Examples and items.
fn items(path: &Path, args: &TasksArgs) -> Result<(Vec<Item>, Vec<Item>)> {
    let all = parse_items(&read(path, "--tasks")?);
    let mut all = all.with_context(|| format!("--tasks {}", path.display()))?;
    let (have, shots) = (all.len(), args.shots);
    ensure!(
        have > shots,
        "--tasks {}: {have} items; more than the {shots} examples of --shots are needed",
        path.display()
    );
    let mut items = all.split_off(shots);
    items.truncate(args.items);
    Ok((all, items))
}

async fn paired(
    (a, b): (&Asker, &Asker),
    examples: &[Item],
    items: &[Item],
    args: &TasksArgs,
    progress: &Progress,
) -> Result<PairedScores> {
    let head: String = examples.iter().map(example).collect();
    let mut scores = PairedScores::default();
    for (index, item) in items.iter().enumerate() {
        progress.phase(format!("item {} of {}", index + 1, items.len()));
        let right_a = is_right(a, &head, item, args.output_len).await?;
        let right_b = is_right(b, &head, item, args.output_len).await?;
        scores.right.push((right_a, right_b));
    }
    Ok(scores)
}

/// A solved item.
fn example(item: &Item) -> String {
    let answer = match &item.question {
        Question::Number { solution, .. } => solution,
        Question::Choice { choices, truth } => &choices[*truth],
    };
    format!("Question: {}\nAnswer: {answer}\n\n", item.text)
}

async fn is_right(arm: &Asker, head: &str, item: &Item, tokens: usize) -> Result<bool> {
    let context = format!("{head}Question: {}\nAnswer:", item.text);
    match &item.question {
        Question::Number { truth, .. } => {
            let answer = arm.complete(&context, tokens, &STOPS).await?;
            Ok(numeric_answer(&answer).as_ref() == Some(truth))
        }
        Question::Choice { choices, truth } => {
            let mut best: Option<(f64, usize)> = None;
            for (index, choice) in choices.iter().enumerate() {
                let likelihood = likelihood(arm, &context, &format!(" {choice}")).await?;
                if best.is_none_or(|(most, _)| likelihood > most) {
                    best = Some((likelihood, index));
                }
            }
            Ok(best.is_some_and(|(_, index)| index == *truth))
        }
    }
}

/// Log-probability of `rest` after `context`, nats.
async fn likelihood(arm: &Asker, context: &str, rest: &str) -> Result<f64> {
    let tokens = arm.control.tokenize(&format!("{context}{rest}")).await?;
    let before = arm.control.tokenize(context).await?;
    // Where they meet, tokens may join; from the first that differs on all is the choice's.
    let shared = tokens
        .iter()
        .zip(&before)
        .take_while(|(x, y)| x == y)
        .count();
    let rows = logprobs(arm, &tokens).await?;
    let from = shared.max(1);
    ensure!(
        from < tokens.len(),
        "{}: the choice {rest:?} has no token of its own",
        arm.url
    );
    Ok(rows[from - 1..].iter().sum())
}

/// Log-probabilities of all tokens but the first.
async fn logprobs(arm: &Asker, tokens: &[TokenId]) -> Result<Vec<f64>> {
    let rows = arm.prompt(tokens, Source::PromptLogprobs).await;
    let rows = rows
        .context("multiple choice and perplexity need `prompt_logprobs`")?
        .rows;
    let found: Option<Vec<f64>> = rows.iter().map(|row| row.logprob()).collect();
    match found {
        Some(found) => Ok(found),
        None => bail!("{}: a prompt token has no log-probability", arm.url),
    }
}

async fn likelihoods(
    (a, b): (&Asker, &Asker),
    text: &str,
    args: &TasksArgs,
    limits: TaskLimits,
    progress: &Progress,
) -> Result<Perplexity> {
    let size = (args.windows, args.window_len);
    let windows = prompts::cut(a, text, size, args.seed).await;
    let windows = windows.context("--perplexity")?;
    let mut scored = Vec::with_capacity(windows.len());
    for (index, window) in windows.iter().enumerate() {
        progress.phase(format!("window {} of {}", index + 1, windows.len()));
        let nll = |rows: Vec<f64>| -rows.iter().sum::<f64>();
        let (in_a, in_b) = (logprobs(a, window).await?, logprobs(b, window).await?);
        let tokens = in_a.len() as u64;
        scored.push((nll(in_a), nll(in_b), tokens));
    }
    Ok(Perplexity::judge(&scored, limits)?)
}

impl Document {
    fn text(&self) -> String {
        let mut lines = vec![
            format!("A  {} ({})", self.base_url, self.model),
            format!("B  {}", self.against),
        ];
        if let Some(s) = &self.scores {
            let share = |share: &Share| {
                format!(
                    "{} of {} right, {:.1} % (95 % interval {:.1} to {:.1})",
                    share.right,
                    s.items,
                    100.0 * share.value,
                    100.0 * share.low,
                    100.0 * share.high
                )
            };
            lines.push(String::new());
            lines.push(format!(
                "scores, {} examples: {}",
                self.shots,
                word(&s.verdict)
            ));
            lines.push(format!("  A  {}", share(&s.a)));
            lines.push(format!("  B  {}", share(&s.b)));
            lines.push(format!(
                "  {} lost, {} gained, p = {:.4} (McNemar, exact); lost at most {:.1} % with {:.0} \
                 % confidence, margin {:.1} %",
                s.lost,
                s.gained,
                s.p,
                100.0 * s.lost_share_high,
                100.0 * s.limits.confidence,
                100.0 * s.limits.margin
            ));
        }
        if let Some(p) = &self.perplexity {
            lines.push(String::new());
            lines.push(format!("perplexity: {}", word(&p.verdict)));
            lines.push(format!(
                "  A {:.4}, B {:.4} over {} tokens in {} windows",
                p.a, p.b, p.tokens, p.windows
            ));
            lines.push(format!(
                "  mean change of NLL {:+.6} nats a token ({:+.6} to {:+.6}), margin {}",
                p.delta_nll, p.interval.0, p.interval.1, p.margin
            ));
        }
        let reasons = match &self.verdict {
            Verdict::Pass => &Vec::new(),
            Verdict::Fail { reasons } => reasons,
            Verdict::Inconclusive { why } => why,
        };
        lines.push(String::new());
        lines.push(word(&self.verdict).to_owned());
        lines.extend(reasons.iter().map(|reason| format!("- {reason}")));
        lines.join("\n")
    }
}
