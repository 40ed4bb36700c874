//! Terms of the report, explained at its foot; on the page the first use of each leads there.

use crate::sections::Section;
use crate::table::Table;

/// A term: its name on the page, how it is written in sentences, what it means.
struct Term {
    anchor: &'static str,
    /// Spellings, the one of the table first.
    words: &'static [&'static str],
    meaning: &'static str,
}

/// Behind what an anchor of the page begins with, so that no section has the same.
const ANCHOR: &str = "s-";

const TERMS: [Term; 19] = [
    Term {
        anchor: "arm",
        words: &["arm", "arms"],
        meaning: "one of the servers or settings that are compared",
    },
    Term {
        anchor: "block",
        words: &["block", "blocks"],
        meaning: "one round in which every arm gets the same requests under every load; a new \
                  block has new requests",
    },
    Term {
        anchor: "cell",
        words: &["cell", "cells"],
        meaning: "one measured run: one arm, one load, one block",
    },
    Term {
        anchor: "void",
        words: &["void", "not valid"],
        meaning: "a cell whose conditions did not hold, or a comparison without a usable pair; it \
                  enters no number",
    },
    Term {
        anchor: "contradiction",
        words: &["held"],
        meaning: "a check of something that must be so, or nothing may be claimed; \"ok\" or a \
                  count of what is out is a check of something that costs data at most",
    },
    Term {
        anchor: "baseline",
        words: &["baseline", "candidate"],
        meaning: "the arm that is compared with, and the one that is judged",
    },
    Term {
        anchor: "ttft",
        words: &["TTFT"],
        meaning: "time to first token, from the intended arrival of a request",
    },
    Term {
        anchor: "itl",
        words: &["ITL"],
        meaning: "inter-token latency: time between two tokens; those that came in one event \
                  share its gap evenly",
    },
    Term {
        anchor: "gap",
        words: &["event gap", "event gaps", "gap", "gaps"],
        meaning: "time between two events of a stream, as a reader sees it; the longest one is \
                  the worst stall. Where each token has an event of its own it is the ITL",
    },
    Term {
        anchor: "p99",
        words: &["p99"],
        meaning: "99 of 100 are at most so long; what is rarer than 1 in 100 is not in it",
    },
    Term {
        anchor: "goodput",
        words: &["goodput", "goodput share"],
        meaning: "requests that keep all limits (SLO), each second or as a share of all",
    },
    Term {
        anchor: "lag",
        words: &["lag", "driver lag"],
        meaning: "how late the client sent a request by its own fault; calibrated: the client was \
                  measured against a server that answers at once before the run",
    },
    Term {
        anchor: "interval",
        words: &["interval", "intervals"],
        meaning: "where the true change lies with the confidence named, from the spread between \
                  blocks",
    },
    Term {
        anchor: "margin",
        words: &["margin"],
        meaning: "a change up to this size does not matter",
    },
    Term {
        anchor: "holm",
        words: &["Holm p", "Holm"],
        meaning: "chance of such a change without a difference, raised so that among all \
                  comparisons of the suite together a false claim stays rare",
    },
    Term {
        anchor: "inconclusive",
        words: &["inconclusive", "not settled", "equivalent"],
        meaning: "equivalent: the change is shown to lie within the margin; inconclusive or not \
                  settled: neither a change nor its absence is shown",
    },
    Term {
        anchor: "front",
        words: &["front"],
        meaning: "settings that no other one beats in both latencies at once",
    },
    Term {
        anchor: "points",
        words: &["pt", "points"],
        meaning: "pt: percentage points, the difference of two shares",
    },
    Term {
        anchor: "classes",
        words: &["class", "classes"],
        meaning: "kinds of requests of a load; in `interference` streams of background decode \
                  while requests of long_prompt come in between",
    },
];

/// The section with all terms.
pub(super) fn section() -> Section {
    let mut section = Section::new("glossary", "Words");
    let caption = "What the words of this report mean";
    let mut table = Table::new(caption, 2, &["word", "meaning"]);
    table.wraps_last = true;
    for (row, term) in TERMS.iter().enumerate() {
        table.push(vec![term.words[0].to_owned(), term.meaning.to_owned()]);
        table
            .anchors
            .insert(row, format!("{ANCHOR}{}", term.anchor));
    }
    section.tables.push(table);
    section
}

/// Makes the first use of each term in sentences lead to its meaning.
pub(super) struct Linker {
    pending: Vec<&'static Term>,
}

impl Linker {
    pub(super) fn new() -> Linker {
        Linker {
            pending: TERMS.iter().collect(),
        }
    }

    /// A sentence, as HTML, with links.
    pub(super) fn link(&mut self, html: &str) -> String {
        let mut linked = String::with_capacity(html.len());
        let mut rest = html;
        while let Some((at, length, term)) = self.first(rest) {
            let (before, from) = rest.split_at(at);
            let (word, after) = from.split_at(length);
            let anchor = self.pending.remove(term).anchor;
            linked.push_str(before);
            linked.push_str(&format!("<a href=\"#{ANCHOR}{anchor}\">{word}</a>"));
            rest = after;
        }
        linked.push_str(rest);
        linked
    }

    /// The first use of a term that is not explained yet: where, how long, which; the longest
    /// spelling of those that begin there.
    fn first(&self, html: &str) -> Option<(usize, usize, usize)> {
        let each = self.pending.iter().enumerate().flat_map(|(term, own)| {
            let spellings = own.words.iter();
            spellings.filter_map(move |word| Some((find(html, word)?, word.len(), term)))
        });
        each.min_by_key(|(at, length, _)| (*at, std::cmp::Reverse(*length)))
    }
}

/// Where a word stands by itself in a sentence, outside of marks and code.
fn find(html: &str, word: &str) -> Option<usize> {
    let inside = |at: usize| {
        let before = &html[..at];
        let tag = before
            .rfind('<')
            .is_some_and(|open| !before[open..].contains('>'));
        let code = before.rfind("<code>") > before.rfind("</code>");
        tag || code
    };
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    html.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = html[..at].chars().next_back();
        let mut after = html[at + word.len()..].chars();
        let next = after.next();
        // The name of a figure: `classes.long.ttft_ms.p50`.
        let is_name = next == Some('.') && letter(after.next());
        !letter(before) && before != Some('.') && !letter(next) && !is_name && !inside(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_use_of_a_term_leads_to_its_meaning() {
        let mut linker = Linker::new();
        let said = linker.link("Holm p of a block, and <code>block</code> of blocks");
        assert_eq!(
            said,
            "<a href=\"#s-holm\">Holm p</a> of a <a href=\"#s-block\">block</a>, and \
             <code>block</code> of blocks"
        );
        assert_eq!(linker.link("a block"), "a block", "once is enough");
        assert_eq!(linker.link("ITL_x, arm.a, x.arm"), "ITL_x, arm.a, x.arm");
        let code = "<code>cell</code> excellent cells";
        let expected = "<code>cell</code> excellent <a href=\"#s-cell\">cells</a>";
        assert_eq!(linker.link(code), expected);
    }

    #[test]
    fn every_anchor_is_one_of_the_table() {
        let section = section();
        let anchors = &section.tables[0].anchors;
        let names: std::collections::BTreeSet<&String> = anchors.values().collect();
        assert_eq!(names.len(), TERMS.len());
        assert!(section.tables[0].html().contains("<tr id=\"s-holm\">"));
    }
}
