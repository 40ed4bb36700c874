//! Stop strings.
//!
//! A stop string may be spread over several tokens, so text that could be its beginning is held
//! back until the next token decides. What is found does not depend on how the text was cut into
//! tokens: the match that ends first wins, and among these the longest. (vLLM takes the first
//! string of the list that is found in the newest token, so its answer depends on the cut.)

/// Looks for stop strings in a growing text.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
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
    /// Panics on an empty stop string: requests that name one are refused before.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        assert!(
            stops.iter().all(|s| !s.is_empty()),
            "an empty stop string matches everywhere"
        );
        StopMatcher {
            stops,
            held: String::new(),
        }
    }

    /// The stop strings.
    pub(crate) fn stops(&self) -> &[String] {
        &self.stops
    }

    /// Takes the next piece of text; a match must end inside it. With `may_stop` false nothing
    /// ends, but the beginning of a later match is still remembered.
    pub(crate) fn push(&mut self, piece: &str, may_stop: bool) -> Released {
        if self.stops.is_empty() {
            return Released {
                text: piece.to_owned(),
                stop: None,
            };
        }
        let old = self.held.len();
        self.held.push_str(piece);
        if may_stop && let Some((stop, start)) = self.find(old) {
            self.held.truncate(start);
            return Released {
                text: std::mem::take(&mut self.held),
                stop: Some(stop),
            };
        }
        let keep = self.begun();
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

    /// The match that ends first after byte `old`, as (number of the stop string, start).
    fn find(&self, old: usize) -> Option<(usize, usize)> {
        let text = self.held.as_bytes();
        let mut best: Option<(usize, usize, usize)> = None;
        for (number, stop) in self.stops.iter().enumerate() {
            let pattern = stop.as_bytes();
            let from = (old + 1).saturating_sub(pattern.len());
            // Valid UTF-8 is found in valid UTF-8 only at the boundary of a character.
            let windows = text.get(from..).unwrap_or_default().windows(pattern.len());
            let Some(offset) = windows
                .enumerate()
                .find_map(|(i, w)| (w == pattern).then_some(i))
            else {
                continue;
            };
            let (start, end) = (from + offset, from + offset + pattern.len());
            if best.is_none_or(|(_, s, e)| (end, start) < (e, s)) {
                best = Some((number, start, end));
            }
        }
        best.map(|(number, start, _)| (number, start))
    }

    /// Length of the longest end of the held text that is the beginning of a stop string.
    fn begun(&self) -> usize {
        let text = self.held.as_bytes();
        let longest = |stop: &String| {
            let stop = stop.as_bytes();
            let most = text.len().min(stop.len() - 1);
            (1..=most)
                .rev()
                .find(|&n| text[text.len() - n..] == stop[..n])
                .unwrap_or(0)
        };
        let keep = self.stops.iter().map(longest).max().unwrap_or(0);
        // A stop string begins at a character, so its beginning in the text does too.
        assert!(
            self.held.is_char_boundary(text.len() - keep),
            "held text cut inside a character"
        );
        keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
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
        let mut matcher = StopMatcher::new(vec!["ab".to_owned(), "x".to_owned()]);
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
        let mut nested = StopMatcher::new(vec!["abz".to_owned(), "b".to_owned()]);
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

    #[test]
    fn every_cut_gives_the_answer_of_the_uncut_text() {
        // Oracle: scan the whole text for the earliest end, then the longest match.
        let text: Vec<char> = "aé1aab🙂éaabb1é".chars().collect();
        let stops = ["aab", "b🙂", "é1", "1é", "zz"];
        for skip in 0..stops.len() {
            let stops: Vec<&str> = stops[skip..].to_vec();
            let whole: String = text.iter().collect();
            let mut expected: Option<(usize, usize)> = None;
            for end in 0..=whole.len() {
                for start in 0..end {
                    if expected.is_none() && whole.is_char_boundary(start) {
                        let hit = stops
                            .iter()
                            .any(|s| whole.is_char_boundary(end) && whole[start..end] == **s);
                        expected = hit.then_some((start, end));
                    }
                }
            }
            let want = expected.map_or(whole.clone(), |(start, _)| whole[..start].to_owned());
            for cut in 0u32..1 << (text.len() - 1) {
                let mut pieces = vec![String::new()];
                for (i, c) in text.iter().enumerate() {
                    // OK because the list starts with one piece and only grows.
                    pieces.last_mut().unwrap().push(*c);
                    if cut >> i & 1 == 1 {
                        pieces.push(String::new());
                    }
                }
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                let (out, stop) = run(&stops, &pieces);
                assert_eq!(
                    (out.concat(), stop.is_some()),
                    (want.clone(), expected.is_some())
                );
            }
        }
    }
}
