//! The colour of the headline: green only for good news.

use pb_judge::run::{Outcome, PrimaryCounts, RunVerdict};

/// How the news is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Something got better and nothing worse.
    Better,
    /// A valid answer that is neither good nor bad news alone.
    Plain,
    /// Something got worse and nothing better.
    Worse,
    /// The data cannot answer.
    Inconclusive,
    /// Outputs are not those of the monolithic pass.
    Fail,
    /// No number may be claimed.
    Void,
}

impl Tone {
    /// The tone of a verdict.
    pub(crate) fn of(verdict: &RunVerdict) -> Tone {
        let counts = PrimaryCounts::of(&verdict.performance);
        match verdict.outcome {
            Outcome::Void => Tone::Void,
            Outcome::Fail => Tone::Fail,
            Outcome::Inconclusive => Tone::Inconclusive,
            Outcome::Pass => Tone::of_counts(&counts),
        }
    }

    fn of_counts(counts: &PrimaryCounts) -> Tone {
        match (counts.better > 0, counts.worse > 0) {
            (true, false) => Tone::Better,
            (false, true) => Tone::Worse,
            _ => Tone::Plain,
        }
    }

    /// The class of the page's panel.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Tone::Better => "better",
            Tone::Plain => "plain",
            Tone::Worse => "worse",
            Tone::Inconclusive => "inconclusive",
            Tone::Fail => "fail",
            Tone::Void => "void",
        }
    }

    /// The terminal's colour.
    pub(crate) const fn style(self) -> &'static str {
        match self {
            Tone::Better => "1;32",
            Tone::Plain => "1",
            Tone::Inconclusive => "1;33",
            Tone::Worse | Tone::Fail | Tone::Void => "1;31",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn green_is_for_good_news_only() {
        let tone = |better, worse| {
            Tone::of_counts(&PrimaryCounts {
                better,
                worse,
                unchanged: 1,
                undecided: 1,
            })
        };
        assert_eq!(tone(3, 0), Tone::Better);
        assert_eq!(tone(3, 1), Tone::Plain);
        assert_eq!(tone(0, 4), Tone::Worse);
        assert_eq!(tone(0, 0), Tone::Plain);
    }
}
