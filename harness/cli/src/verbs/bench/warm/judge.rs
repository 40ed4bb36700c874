//! What is claimed of a run's cache, held against what its requests found.

use std::collections::BTreeMap;

use pb_bench::Cache;
use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use pb_contract::{RequestId, RequestRow, RequestStatus};
use pb_target::{HitCheck, HitFlag, HitVerdict, ServerWindow, check_hits};

use super::CacheVerdict;
use super::expect::{Prefixes, Range, as_planned, bodies};

/// What requests must find.
#[derive(Clone, Debug)]
enum Known {
    /// Nothing is said.
    Unknown,
    /// None of them anything.
    Zero,
    /// What follows from their tokens and from when they ran.
    Tokens(Prefixes),
    /// What the workload says, or what was seen before the run.
    Said(BTreeMap<RequestId, Range>),
}

/// A claim.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// `asis`, `cold` or `warm`.
    claimed: &'static str,
    /// Why it could not be shown.
    unproven: Option<String>,
    known: Known,
    block: Option<u32>,
    tolerance_tokens: u32,
    /// The server's template stands before every prompt and may be found.
    templated: bool,
}

impl Claim {
    /// None at all.
    pub(crate) fn none() -> Claim {
        Claim {
            claimed: "asis",
            unproven: None,
            known: Known::Unknown,
            block: None,
            tolerance_tokens: 0,
            templated: false,
        }
    }

    /// One that could not be shown.
    pub(crate) fn unproven(claimed: &'static str, why: &str) -> Claim {
        Claim {
            claimed,
            unproven: Some(why.to_owned()),
            ..Claim::none()
        }
    }

    /// That no request finds anything.
    pub(crate) fn nothing(claimed: &'static str) -> Claim {
        Claim {
            claimed,
            known: Known::Zero,
            ..Claim::none()
        }
    }

    /// That requests find what follows from their tokens, or else what the workload says.
    pub(crate) fn of(
        claimed: &'static str,
        plan: &Plan,
        prefixes: Option<Prefixes>,
        exact: bool,
    ) -> Claim {
        let known = match prefixes {
            Some(prefixes) => Known::Tokens(prefixes),
            None => Known::Said(as_planned(plan, exact)),
        };
        Claim {
            claimed,
            known,
            ..Claim::none()
        }
    }

    /// With what the prompts that primed the cache found when they were sent again, for the
    /// requests that send the same prompts, when their tokens do not tell.
    pub(crate) fn or_found(
        mut self,
        plan: &Plan,
        prime: &[PlannedBody],
        found: &[Option<u32>],
    ) -> Claim {
        let Known::Said(said) = &mut self.known else {
            return self;
        };
        let key = |body: &PlannedBody| format!("{:?}", (&body.prompt, &body.cache_salt));
        let pairs = prime.iter().zip(found);
        let by_prompt: BTreeMap<String, u32> = pairs
            .filter_map(|(body, found)| Some((key(body), (*found)?)))
            .collect();
        for (id, body) in bodies(plan).unwrap_or_default() {
            if let Some(&tokens) = by_prompt.get(&key(body)) {
                said.insert(id, Range::exact(tokens));
            }
        }
        self
    }

    /// With what is known of the server's cache. `chat`: prompts stand in the server's template.
    pub(crate) fn with_server(mut self, block: Option<u32>, tolerance: u32, chat: bool) -> Claim {
        self.block = block;
        self.tolerance_tokens = tolerance;
        self.templated = chat;
        self
    }

    /// Holds what `rows` found against the claim.
    pub(crate) fn judge(
        &self,
        plan: &Plan,
        rows: &[RequestRow],
        window: Option<&ServerWindow>,
    ) -> CacheVerdict {
        let expected = self.expected(plan, rows);
        let planned = rows.iter().filter_map(|row| {
            let found = row.cached_tokens;
            match expected.get(&row.request) {
                Some(range) => Some((row.request, range.nearest(found.unwrap_or(range.low)))),
                // Of what nothing is expected, nothing can be wrong.
                None => found.map(|found| (row.request, found)),
            }
        });
        let planned = planned.collect();
        let mut check = check_hits(&planned, rows, window, self.tolerance_tokens);
        self.allow_range(&mut check, &expected, rows);
        let mut verdict = CacheVerdict {
            cache: self.cache(&check, &expected, plan, rows),
            reasons: Vec::new(),
            notes: Vec::new(),
        };
        if let Some(why) = &self.unproven {
            let claimed = self.claimed;
            verdict
                .reasons
                .push(format!("the cache was not shown to be {claimed}: {why}"));
        }
        match &check.verdict {
            HitVerdict::Agrees => {}
            HitVerdict::Differs { reason } if self.claims() => {
                verdict
                    .reasons
                    .push(format!("prefix hits other than planned: {reason}"));
            }
            HitVerdict::Differs { .. } => {}
            HitVerdict::Unknown { reason } => {
                if self.claims() && check.ok_rows > 0 {
                    verdict
                        .notes
                        .push(format!("prefix hits could not be compared: {reason}"));
                }
            }
        }
        for flag in &check.flags {
            self.flag(flag, &mut verdict);
        }
        self.note_ranges(&expected, rows, &mut verdict);
        verdict
    }

    /// Whether anything is said of the cache.
    fn claims(&self) -> bool {
        self.claimed != "asis" && self.unproven.is_none()
    }

    fn expected(&self, plan: &Plan, rows: &[RequestRow]) -> BTreeMap<RequestId, Range> {
        match &self.known {
            Known::Unknown => BTreeMap::new(),
            Known::Zero => rows
                .iter()
                .map(|row| (row.request, Range::exact(0)))
                .collect(),
            Known::Tokens(prefixes) => prefixes.expect(rows),
            Known::Said(said) if self.templated => self.with_template(said, plan, rows),
            Known::Said(said) => said.clone(),
        }
    }

    /// What the workload says, and the template, which all requests share and the workload does
    /// not know: the tokens that the server counts beyond the planned ones, in whole blocks.
    fn with_template(
        &self,
        said: &BTreeMap<RequestId, Range>,
        plan: &Plan,
        rows: &[RequestRow],
    ) -> BTreeMap<RequestId, Range> {
        let block = self.block.unwrap_or(1);
        let chats: BTreeMap<RequestId, u32> = bodies(plan)
            .unwrap_or_default()
            .into_iter()
            .filter(|(_, body)| matches!(body.prompt, PlannedPrompt::Chat(_)))
            .map(|(id, body)| (id, body.planned_tokens))
            .collect();
        let mut said = said.clone();
        for row in rows {
            let (Some(range), Some(planned)) =
                (said.get_mut(&row.request), chats.get(&row.request))
            else {
                continue;
            };
            let beyond = row.prompt_tokens.unwrap_or(0).saturating_sub(*planned);
            if self.claimed == "cold" {
                range.high += beyond.div_ceil(block) * block;
            }
        }
        said
    }

    /// Counters speak of all requests together, so their sum may lie anywhere in the range.
    fn allow_range(
        &self,
        check: &mut HitCheck,
        expected: &BTreeMap<RequestId, Range>,
        rows: &[RequestRow],
    ) {
        let (0, Some(measured)) = (check.known_rows, check.measured_hit_tokens) else {
            return;
        };
        let most = |row: &RequestRow| {
            let high = expected.get(&row.request).map_or(0, |range| range.high);
            u64::from(high) + u64::from(self.tolerance_tokens)
        };
        let in_range =
            measured <= rows.iter().map(most).sum() && measured >= check.planned_hit_tokens;
        if in_range && matches!(check.verdict, HitVerdict::Differs { .. }) {
            check.verdict = HitVerdict::Agrees;
        }
    }

    fn cache(
        &self,
        check: &HitCheck,
        expected: &BTreeMap<RequestId, Range>,
        plan: &Plan,
        rows: &[RequestRow],
    ) -> Cache {
        let said: BTreeMap<RequestId, u32> = bodies(plan)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(id, body)| Some((id, body.planned_hit_tokens?)))
            .collect();
        let compared = rows.iter().filter(|row| {
            let known = check.known_rows == 0 || row.cached_tokens.is_some();
            row.status == RequestStatus::Ok && known
        });
        let planned = compared.map(|row| {
            let range = expected.get(&row.request)?;
            // Of a cold cache the plan's own number, even where a race allows another one.
            let own = said.get(&row.request).copied();
            Some(u64::from(range.nearest(own.unwrap_or(range.high))))
        });
        let planned: Option<u64> = planned.sum();
        Cache {
            state: match self.unproven {
                Some(_) => "unproven",
                None => self.claimed,
            },
            planned_hit_tokens: planned.filter(|_| self.claims()),
            measured_hit_tokens: check.measured_hit_tokens,
            known_rows: check.known_rows,
        }
    }

    fn flag(&self, flag: &HitFlag, verdict: &mut CacheVerdict) {
        let CacheVerdict { reasons, notes, .. } = verdict;
        match *flag {
            HitFlag::Preemptions { count } => notes.push(format!(
                "{count} preemptions: what a preempted request finds of its own blocks is counted \
                 as a prefix hit"
            )),
            HitFlag::PartlyKnown {
                known_rows,
                ok_rows,
            } => notes.push(format!(
                "{known_rows} of {ok_rows} answers say what was found; the hit rate is theirs"
            )),
            HitFlag::OtherTraffic {
                server_tokens,
                cell_tokens,
            } => {
                let text = format!(
                    "the server looked up {server_tokens} prompt tokens where this run sent \
                     {cell_tokens}"
                );
                // Fewer: a cache that is off looks nothing up.
                match server_tokens > cell_tokens && self.claims() {
                    true => reasons.push(format!("{text}: something else used it")),
                    false => notes.push(text),
                }
            }
            HitFlag::SourcesDiffer {
                usage_tokens,
                counter_tokens,
            } => {
                let text = format!(
                    "the answers say that {usage_tokens} tokens were found, the server's counters \
                     {counter_tokens}: one of them is wrong"
                );
                match self.claims() {
                    true => reasons.push(text),
                    false => notes.push(text),
                }
            }
            // Whoever observed the window says so.
            HitFlag::Restarted => {}
        }
    }

    fn note_ranges(
        &self,
        expected: &BTreeMap<RequestId, Range>,
        rows: &[RequestRow],
        verdict: &mut CacheVerdict,
    ) {
        if !self.claims() {
            return;
        }
        let ok = rows.iter().filter(|row| row.status == RequestStatus::Ok);
        let ranges: Vec<Range> = ok
            .clone()
            .filter_map(|row| expected.get(&row.request).copied())
            .collect();
        let silent = ok.count() - ranges.len();
        if silent > 0 {
            verdict.notes.push(format!(
                "of {silent} requests it is not known what they must find: they were not compared"
            ));
        }
        let open = ranges.iter().filter(|range| range.low < range.high).count();
        if open > 0 {
            let sum = |of: fn(&Range) -> u32| -> u64 {
                ranges.iter().map(|range| u64::from(of(range))).sum()
            };
            verdict.notes.push(format!(
                "{open} requests ran beside others that they share a beginning with: from {} to {} \
                 tokens could be found in all",
                sum(|range| range.low),
                sum(|range| range.high)
            ));
        }
    }
}

#[cfg(test)]
mod tests;
