//! Stop strings.
//!
//! A stop string may be spread over several tokens, so text that could be its beginning is held
//! back until the next token decides. What is found does not depend on how the text was cut into
//! tokens: the match that ends first wins, and among these the longest. (vLLM takes the first
//! string of the list that is found in the newest token, so its answer depends on the cut.)
//!
//! Each string is looked for as Knuth, Morris and Pratt do: how much of it the text ends with is
//! carried from byte to byte, so no text makes the search slow. That matters because it runs on
//! the engine thread, between two steps of everybody's requests.

use std::sync::Arc;

/// Stop strings, made ready for the search; one set serves every choice of a request.
#[derive(Debug)]
pub(crate) struct StopSet {
    stops: Vec<Stop>,
}

#[derive(Debug)]
struct Stop {
    text: String,
    /// For each beginning of the text, shortest first: the length of its longest proper end that
    /// is a beginning too.
    borders: Vec<u32>,
}

impl StopSet {
    /// Panics on an empty stop string: requests that name one are refused before.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        assert!(
            stops.iter().all(|s| !s.is_empty()),
            "an empty stop string matches everywhere"
        );
        StopSet {
            stops: stops.into_iter().map(Stop::new).collect(),
        }
    }
}

impl Stop {
    fn new(text: String) -> Self {
        let mut stop = Stop {
            text,
            borders: vec![0],
        };
        let mut matched = 0;
        for at in 1..stop.text.len() {
            matched = stop.advance(matched, stop.text.as_bytes()[at]);
            stop.borders.push(matched);
        }
        stop
    }

    /// How much of this string a text ends with after `byte`, when it was `matched` before.
    fn advance(&self, mut matched: u32, byte: u8) -> u32 {
        let text = self.text.as_bytes();
        loop {
            if text.get(matched as usize) == Some(&byte) {
                return matched + 1;
            }
            let Some(before) = (matched as usize).checked_sub(1) else {
                return 0;
            };
            matched = self.borders[before];
        }
    }
}

/// Looks for stop strings in a growing text.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    set: Arc<StopSet>,
    /// How much of each stop string the text so far ends with.
    matched: Vec<u32>,
    /// The longest end of the text so far that begins a stop string; not yet given out.
    held: String,
}

/// What to give out after a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Released {
    /// Text that is safe to give out.
    pub(crate) text: String,
    /// Number of the stop string that was found; nothing after it counts.
    pub(crate) stop: Option<usize>,
}

impl StopMatcher {
    pub(crate) fn new(set: Arc<StopSet>) -> Self {
        StopMatcher {
            matched: vec![0; set.stops.len()],
            set,
            held: String::new(),
        }
    }

    /// A stop string by its number.
    pub(crate) fn stop(&self, number: usize) -> &str {
        &self.set.stops[number].text
    }

    /// Takes the next piece of text; a match must end inside it. With `may_stop` false nothing
    /// ends, but the beginning of a later match is still remembered.
    pub(crate) fn push(&mut self, piece: &str, may_stop: bool) -> Released {
        let old = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            let found = self.advance(byte);
            if let Some(stop) = found.filter(|_| may_stop) {
                // Valid UTF-8 is found in valid UTF-8 only at the boundary of a character.
                let end = old + offset + 1;
                self.held.truncate(end - self.stop(stop).len());
                return Released {
                    text: std::mem::take(&mut self.held),
                    stop: Some(stop),
                };
            }
        }
        // A stop string begins at a character, so its beginning in the text does too.
        let keep = self.matched.iter().max().map_or(0, |&n| n as usize);
        let rest = self.held.split_off(self.held.len() - keep);
        Released {
            text: std::mem::replace(&mut self.held, rest),
            stop: None,
        }
    }

    /// Gives out what is held back, at the end of the generation.
    pub(crate) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Takes a byte in; gives the longest stop string that it completes, the first of equals.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut longest: Option<usize> = None;
        for (number, stop) in self.set.stops.iter().enumerate() {
            let matched = &mut self.matched[number];
            *matched = stop.advance(*matched, byte);
            if *matched as usize == stop.text.len() {
                let length = |number: usize| self.set.stops[number].text.len();
                if longest.is_none_or(|best| stop.text.len() > length(best)) {
                    longest = Some(number);
                }
                // A whole match is no beginning any more: what counts from now on is its end.
                *matched = stop.borders[stop.text.len() - 1];
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        let stops = stops.iter().map(|s| (*s).to_owned()).collect();
        StopMatcher::new(Arc::new(StopSet::new(stops)))
    }

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut matcher = matcher(stops);
        let mut out = Vec::new();
        for piece in pieces {
            let released = matcher.push(piece, true);
            out.push(released.text);
            if released.stop.is_some() {
                return (out, released.stop);
            }
        }
        out.push(matcher.flush());
        (out, None)
    }

    #[test]
    fn a_stop_string_over_three_tokens_never_leaks() {
        let (out, stop) = run(&["\n\nQ:"], &["A.", "\n", "\nQ", ": x"]);
        assert_eq!(
            (out, stop),
            (vec!["A.".into(), "".into(), "".into(), "".into()], Some(0))
        );
    }

    #[test]
    fn held_text_is_given_out_when_it_was_no_stop_string() {
        let (out, stop) = run(&["abc"], &["xab", "abd", "ab"]);
        assert_eq!(
            (out, stop),
            (
                vec!["x".into(), "ababd".into(), "".into(), "ab".into()],
                None
            )
        );
    }

    #[test]
    fn the_match_that_ends_first_wins_and_then_the_longest() {
        assert_eq!(
            run(&["bcde", "cd"], &["abcde"]),
            (vec!["ab".into()], Some(1))
        );
        assert_eq!(run(&["cd", "bcd"], &["abcde"]), (vec!["a".into()], Some(1)));
    }

    #[test]
    fn below_min_tokens_nothing_ends_but_a_straddling_match_counts() {
        let mut matcher = matcher(&["ab", "x"]);
        assert_eq!(
            matcher.push("xa", false),
            Released {
                text: "x".to_owned(),
                stop: None
            }
        );
        assert_eq!(
            matcher.push("b", true),
            Released {
                text: String::new(),
                stop: Some(0)
            }
        );
        let mut nested = self::matcher(&["abz", "b"]);
        assert_eq!(
            nested.push("ab", false),
            Released {
                text: String::new(),
                stop: None
            }
        );
        // The "b" of the first piece came before stopping was allowed.
        assert_eq!(
            nested.push("c", true),
            Released {
                text: "abc".to_owned(),
                stop: None
            }
        );
    }

    /// Checks every cut of a text against the answer that a scan of the whole text gives: the
    /// earliest end, then the longest match.
    fn check_every_cut(text: &str, stops: &[&str]) {
        let mut expected: Option<(usize, usize)> = None;
        for end in 0..=text.len() {
            for start in 0..end {
                let hit = |s: &&str| text.get(start..end) == Some(*s);
                if expected.is_none() && stops.iter().any(hit) {
                    expected = Some((start, end));
                }
            }
        }
        let want = expected.map_or(text, |(start, _)| &text[..start]);
        let stop = expected.and_then(|(start, end)| {
            let found = &text[start..end];
            stops.iter().position(|s| *s == found)
        });
        let chars: Vec<char> = text.chars().collect();
        for cut in 0u32..1 << (chars.len() - 1) {
            let mut pieces = vec![String::new()];
            for (i, c) in chars.iter().enumerate() {
                // OK because the list starts with one piece and only grows.
                pieces.last_mut().unwrap().push(*c);
                if cut >> i & 1 == 1 {
                    pieces.push(String::new());
                }
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, found) = run(stops, &pieces);
            assert_eq!(
                (out.concat().as_str(), found),
                (want, stop),
                "{stops:?} {cut:b}"
            );
        }
    }

    #[test]
    fn every_cut_gives_the_answer_of_the_uncut_text() {
        let stops = ["aab", "b🙂", "é1", "1é", "zz"];
        for skip in 0..stops.len() {
            check_every_cut("aé1aab🙂éaabb1é", &stops[skip..]);
        }
        // Strings that begin again inside themselves, and inside each other.
        for stops in [
            &["aabaaab"][..],
            &["abababc", "babb"],
            &["aaaa", "aaab"],
            &["bb", "abb", "b"],
            &["aabaac", "abaab", "abaab"],
        ] {
            for text in [
                "aabaabaaabab",
                "abababababcb",
                "aaabaaabaabc",
                "cbcacbacabbc",
            ] {
                check_every_cut(text, stops);
            }
        }
    }
}
