//! What each request must have found in the prefix cache. Pure.
//!
//! Two requests that share a beginning and overlap race: the later one finds as much of it as
//! the earlier one has computed by then. So the expectation is a range. Its lower end is what was
//! certainly there when the request was sent: the beginnings of requests that had their first
//! token before, and of those that primed the cache. Its upper end is what may have been there by
//! its own first token: the beginnings of all that had been sent. Where nothing overlaps, the two
//! are equal and the expectation is exact. The cache is taken to be unbounded: a request that
//! finds less than the lower end was robbed by an eviction, and its cell is not what it was
//! planned to be.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use pb_contract::{Nanos, RequestId, RequestRow, TokenId};

/// Blocks of all prompts together that are compared, at most: each takes about 100 bytes when the
/// run is judged. Beyond it, only what the workload says is used.
const MAX_BLOCKS: usize = 4 << 20;

/// Tokens that must be found: at least `low`, at most `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Certainly there.
    pub(crate) low: u32,
    /// Perhaps there.
    pub(crate) high: u32,
}

impl Range {
    /// Exactly so many.
    pub(crate) fn exact(tokens: u32) -> Range {
        Range {
            low: tokens,
            high: tokens,
        }
    }

    /// The number of the range that is nearest to `tokens`.
    pub(crate) fn nearest(self, tokens: u32) -> u32 {
        tokens.clamp(self.low, self.high)
    }
}

/// The block keys of prompts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    block: u32,
    primed: Vec<u64>,
    of: BTreeMap<RequestId, Keys>,
}

/// One key for every whole block of a prompt, which it leaves in the cache.
#[derive(Clone, Debug)]
struct Keys {
    all: Vec<u64>,
    /// Of these, as many can be found: the last token of a prompt is always computed.
    findable: usize,
}

impl Prefixes {
    /// Of a plan whose prompts are token ids, in a cache with blocks of `block` tokens that holds
    /// what `primed` left there. Absent when a prompt is no list of ids, or there are too many.
    pub(crate) fn new(plan: &Plan, primed: &[PlannedBody], block: u32) -> Option<Prefixes> {
        let mut prefixes = Prefixes {
            block: block.max(1),
            ..Prefixes::default()
        };
        let mut room = MAX_BLOCKS;
        for body in primed {
            let keys = prefixes.keys(body, &mut room)?;
            prefixes.primed.extend(keys.all);
        }
        prefixes.primed.sort_unstable();
        prefixes.primed.dedup();
        for (id, body) in bodies(plan)? {
            let keys = prefixes.keys(body, &mut room)?;
            prefixes.of.insert(id, keys);
        }
        Some(prefixes)
    }

    fn keys(&self, body: &PlannedBody, room: &mut usize) -> Option<Keys> {
        let ids: &[TokenId] = body.prompt.ids()?;
        let block = self.block as usize;
        let mut chain = hash(&body.cache_salt);
        let blocks = ids.chunks_exact(block);
        *room = room.checked_sub(blocks.len())?;
        let keys = blocks.map(|tokens| {
            chain = hash(&(chain, tokens));
            chain
        });
        Some(Keys {
            all: keys.collect(),
            findable: ids.len().saturating_sub(1) / block,
        })
    }

    /// What each request that was sent must have found.
    pub(crate) fn expect(&self, rows: &[RequestRow]) -> BTreeMap<RequestId, Range> {
        let mut seen: BTreeMap<u64, Seen> = BTreeMap::new();
        let known = |row: &RequestRow| Some((row.sent_ns?, self.of.get(&row.request)?));
        for row in rows {
            let Some((sent, keys)) = known(row) else {
                continue;
            };
            for key in &keys.all {
                let seen = seen.entry(*key).or_default();
                seen.sent(sent, row.request);
                seen.ready = earlier(seen.ready, row.first_token_ns);
            }
        }
        let mut expected = BTreeMap::new();
        for row in rows {
            let Some((sent, keys)) = known(row) else {
                continue;
            };
            let primed = |key: &u64| self.primed.binary_search(key).is_ok();
            let certain = |key: &&u64| {
                let ready = seen.get(key).and_then(|seen| seen.ready);
                primed(key) || ready.is_some_and(|ready| ready < sent)
            };
            // A request without a first token has no end of its own: anything may have come.
            let until = row.first_token_ns.unwrap_or(Nanos(u64::MAX));
            let perhaps = |key: &&u64| {
                let other = seen.get(key).and_then(|seen| seen.by_other(row.request));
                primed(key) || other.is_some_and(|at| at < until)
            };
            let findable = &keys.all[..keys.findable];
            let low = findable.iter().take_while(certain).count() as u32;
            let high = findable.iter().take_while(perhaps).count() as u32;
            let range = Range {
                low: low * self.block,
                high: high.max(low) * self.block,
            };
            expected.insert(row.request, range);
        }
        expected
    }
}

/// When a block was first asked for, by the two that were first, and when it was first ready.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    first: Option<(Nanos, RequestId)>,
    second: Option<(Nanos, RequestId)>,
    ready: Option<Nanos>,
}

impl Seen {
    fn sent(&mut self, at: Nanos, by: RequestId) {
        let new = (at, by);
        match (self.first, self.second) {
            (None, _) => self.first = Some(new),
            (Some(first), _) if new < first => {
                self.second = self.first;
                self.first = Some(new);
            }
            (_, Some(second)) if second < new => {}
            (_, _) => self.second = Some(new),
        }
    }

    /// When a request other than `this` first asked for it.
    fn by_other(&self, this: RequestId) -> Option<Nanos> {
        let other = |entry: &(Nanos, RequestId)| entry.1 != this;
        let found = self.first.filter(other).or(self.second.filter(other));
        found.map(|entry| entry.0)
    }
}

fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Of 64 bits, the same in every run of one binary: keys are never kept.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// All requests of a plan with their bodies; absent when a turn takes its history over, because
/// its prompt is then not in the plan.
pub(crate) fn bodies(plan: &Plan) -> Option<Vec<(RequestId, &PlannedBody)>> {
    let turns = || plan.sessions.iter().flat_map(|session| &session.turns);
    if turns().any(|turn| turn.history) {
        return None;
    }
    let open = plan.open.iter().map(|request| (request.id, &request.body));
    let turns = turns().map(|turn| (turn.id, &turn.body));
    let closed = plan.closed.iter().flat_map(|part| {
        let numbered = (part.first_id.0..).zip(&part.bodies);
        numbered.map(|(id, body)| (RequestId(id), body))
    });
    Some(open.chain(closed).chain(turns).collect())
}

/// What the workload says of each request: `exact` when nothing that overlaps shares a beginning.
/// Requests of which it says nothing are left out.
pub(crate) fn as_planned(plan: &Plan, exact: bool) -> BTreeMap<RequestId, Range> {
    let of = |(id, body): (RequestId, &PlannedBody)| {
        let high = body.planned_hit_tokens?;
        let low = if exact { high } else { 0 };
        Some((id, Range { low, high }))
    };
    let all = bodies(plan).unwrap_or_default();
    all.into_iter().filter_map(of).collect()
}

/// Distinct prompts of a plan, each as a request for one token; turns that take their history
/// over are left out, because their prompts are not known yet.
pub(crate) fn distinct(plan: &Plan) -> Vec<PlannedBody> {
    let open = plan.open.iter().map(|request| &request.body);
    let closed = plan.closed.iter().flat_map(|part| &part.bodies);
    let sessions = plan.sessions.iter().flat_map(|session| {
        let own = |(index, turn): &(usize, &pb_contract::plan::Turn)| *index == 0 || !turn.history;
        session
            .turns
            .iter()
            .enumerate()
            .filter(own)
            .map(|(_, turn)| &turn.body)
    });
    let mut seen: BTreeMap<u64, Vec<&PlannedPrompt>> = BTreeMap::new();
    let mut distinct = Vec::new();
    for body in open.chain(closed).chain(sessions) {
        let key = hash(&format!("{:?}", (&body.prompt, &body.cache_salt)));
        let same = seen.entry(key).or_default();
        if !same.contains(&&body.prompt) {
            same.push(&body.prompt);
            let mut body = body.clone();
            body.max_tokens = 1;
            distinct.push(body);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use pb_contract::Stream;
    use pb_contract::plan::{ChatTurn, ClosedLoop, OpenRequest, Session, Turn};

    use super::*;

    fn body(ids: impl IntoIterator<Item = TokenId>) -> PlannedBody {
        PlannedBody::of_ids("x", ids.into_iter().collect(), 4)
    }

    fn open(bodies: Vec<PlannedBody>) -> Plan {
        let request = |(id, body): (usize, PlannedBody)| OpenRequest {
            id: RequestId(id as u64),
            offset_ns: Nanos(id as u64),
            body,
        };
        Plan {
            open: bodies.into_iter().enumerate().map(request).collect(),
            ..Plan::default()
        }
    }

    fn row(id: u64, sent: Option<u64>, first_token: Option<u64>) -> RequestRow {
        let row = serde_json::json!({
            "arm": "a", "block": 0, "request": id, "class": "x", "intended_ns": 0,
            "sent_ns": sent, "first_token_ns": first_token, "status": "ok",
            "prompt_tokens_planned": 1, "max_tokens": 4, "streamed_tokens": 4,
        });
        serde_json::from_value(row).unwrap()
    }

    fn expect(plan: &Plan, primed: &[PlannedBody], rows: &[RequestRow]) -> Vec<(u32, u32)> {
        let expected = Prefixes::new(plan, primed, 4).unwrap().expect(rows);
        rows.iter()
            .map(|row| expected[&row.request])
            .map(|range| (range.low, range.high))
            .collect()
    }

    /// 13 tokens share their first 9: two whole blocks of four.
    fn pair() -> Plan {
        open(vec![body(0..13), body((0..9).chain(50..54))])
    }

    #[test]
    fn what_follows_finds_what_it_shares() {
        let rows = [row(0, Some(10), Some(20)), row(1, Some(30), Some(40))];
        assert_eq!(expect(&pair(), &[], &rows), [(0, 0), (8, 8)]);
    }

    #[test]
    fn what_overlaps_may_find_it() {
        let rows = [row(0, Some(10), Some(20)), row(1, Some(15), Some(25))];
        // The first may find the second's, too, if that was computed first.
        assert_eq!(expect(&pair(), &[], &rows), [(0, 8), (0, 8)]);
        // Sent only after the first token of the other: too late to be found.
        let rows = [row(0, Some(10), Some(20)), row(1, Some(20), Some(25))];
        assert_eq!(expect(&pair(), &[], &rows), [(0, 0), (0, 8)]);
    }

    #[test]
    fn row_67_the_last_token_is_never_shared() {
        let rows = [row(0, Some(10), Some(20)), row(1, Some(30), Some(40))];
        // Identical prompts, in blocks of four.
        for (tokens, found) in [(12, 8), (13, 12), (4, 0), (1, 0), (0, 0)] {
            let plan = open(vec![body(0..tokens); 2]);
            assert_eq!(
                expect(&plan, &[], &rows),
                [(0, 0), (found, found)],
                "{tokens}"
            );
        }
        // It is there for a longer one.
        let plan = open(vec![body(0..12), body(0..15)]);
        assert_eq!(expect(&plan, &[], &rows), [(0, 0), (12, 12)]);
    }

    #[test]
    fn what_primed_the_cache_is_there_from_the_start() {
        let rows = [row(0, Some(10), Some(20)), row(1, Some(10), Some(20))];
        assert_eq!(expect(&pair(), &[body(0..9)], &rows), [(8, 8), (8, 8)]);
        assert_eq!(expect(&pair(), &[body(0..8)], &rows), [(8, 8), (8, 8)]);
        // Both are in flight: the rest of one is the other's chance.
        assert_eq!(expect(&pair(), &[body(0..7)], &rows), [(4, 8), (4, 8)]);
    }

    #[test]
    fn salts_keep_prompts_apart() {
        let salted = |salt: &str| body(0..13).with_salt(Some(salt.to_owned()));
        let rows = [0, 1, 2].map(|id| row(id, Some(10 * id), Some(10 * id + 5)));
        let plan = open(vec![salted("a"), salted("b"), salted("a")]);
        assert_eq!(expect(&plan, &[], &rows), [(0, 0), (0, 0), (12, 12)]);
    }

    #[test]
    fn a_request_that_failed_may_have_left_its_blocks() {
        let rows = [row(0, Some(10), None), row(1, Some(30), Some(40))];
        assert_eq!(expect(&pair(), &[], &rows)[1], (0, 8));
        // One that was never sent left nothing, and expects nothing.
        let rows = [row(0, None, None), row(1, Some(30), Some(40))];
        let expected = Prefixes::new(&pair(), &[], 4).unwrap().expect(&rows);
        assert_eq!(expected, [(RequestId(1), Range::exact(0))].into());
    }

    /// A brute-force oracle: token by token, request by request.
    #[test]
    fn random_plans_agree_with_a_search_over_all_pairs() {
        let mut stream = Stream::new(4, "expect");
        for block in [1u32, 3, 4, 16] {
            for _ in 0..40 {
                let mut bodies = Vec::new();
                let mut rows = Vec::new();
                for id in 0..12 {
                    let shared = stream.below(30) as u32;
                    let own = 1 + stream.below(20) as u32;
                    let tail = (0..own).map(|i| 1000 + 100 * id + i);
                    bodies.push(body((0..shared).chain(tail)));
                    let sent = stream.below(100);
                    let first = (stream.below(5) > 0).then(|| sent + 1 + stream.below(30));
                    rows.push(row(u64::from(id), Some(sent), first));
                }
                let plan = open(bodies);
                let found = Prefixes::new(&plan, &[], block).unwrap().expect(&rows);
                for (i, this) in rows.iter().enumerate() {
                    let common = |j: usize| {
                        let ids = |i: usize| plan.open[i].body.prompt.ids().unwrap();
                        let pairs = ids(i).iter().zip(ids(j));
                        let same = pairs.take_while(|(a, b)| a == b).count();
                        same.min(ids(i).len() - 1) as u32 / block * block
                    };
                    let best = |keep: &dyn Fn(&RequestRow) -> bool| {
                        let others = (0..rows.len()).filter(|&j| j != i && keep(&rows[j]));
                        others.map(common).max().unwrap_or(0)
                    };
                    let sent = this.sent_ns.unwrap();
                    let until = this.first_token_ns.unwrap_or(Nanos(u64::MAX));
                    let low = best(&|o| o.first_token_ns.is_some_and(|at| at < sent));
                    let high = best(&|o| o.sent_ns.unwrap() < until);
                    let expected = Range { low, high };
                    assert_eq!(found[&this.request], expected, "{block} {i}");
                }
            }
        }
    }

    #[test]
    fn prompts_that_are_no_ids_are_not_guessed() {
        let mut text = pair();
        text.open[1].body.prompt = PlannedPrompt::Text("a b".into());
        assert!(Prefixes::new(&text, &[], 4).is_none());
        text.open[0].body.planned_hit_tokens = Some(8);
        let range = |low| [(RequestId(0), Range { low, high: 8 })].into();
        assert_eq!(as_planned(&text, true), range(8));
        assert_eq!(as_planned(&text, false), range(0));
    }

    #[test]
    fn every_distinct_prompt_is_primed_once() {
        let chat = |content: &str| {
            let turn = ChatTurn {
                role: "user".into(),
                content: content.into(),
            };
            PlannedBody::of("x", PlannedPrompt::Chat(vec![turn]), 1, 9)
        };
        let turn = |id, history| Turn {
            id: RequestId(id),
            think_ns: Nanos::ZERO,
            body: chat(&format!("turn {id}")),
            history,
        };
        let mut plan = open(vec![body(0..9), body(0..9), body(0..10)]);
        plan.closed = vec![ClosedLoop {
            streams: 1,
            first_id: RequestId(10),
            bodies: vec![body(0..10), body(5..9)],
        }];
        plan.sessions = vec![Session {
            offset_ns: Nanos::ZERO,
            turns: vec![turn(20, true), turn(21, true)],
        }];
        let found = distinct(&plan);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.iter().all(|body| body.max_tokens == 1));
        assert_eq!(found[3].prompt, chat("turn 20").prompt);
        assert!(
            Prefixes::new(&plan, &[], 4).is_none(),
            "history is not in the plan"
        );
    }
}
