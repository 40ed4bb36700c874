//! The schedule: random prompts of one length, due as the load says.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use pb_contract::plan::{ChatTurn, ClosedLoop, OpenRequest, Plan, PlannedBody, PlannedPrompt};
use pb_contract::{Nanos, RequestId, Stream};
use pb_load::Limits;
use pb_workloads::{Arrivals, PROSE, all_bodies, first_blocks_unique};

use super::settings::{Load, Settings};
use crate::args::{Api, InputUnit};

/// Class of the requests.
const CLASS: &str = "random";

/// Tokens in the smallest block of the usual prefix caches: no two prompts share one.
const BLOCK: usize = 16;

/// A closed loop without a duration ends by its number of requests, long before this.
const FOREVER: Nanos = Nanos::from_secs(7 * 24 * 3600);

/// A schedule, and whether it ends before the duration that was asked for.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The plan.
    pub(crate) plan: Plan,
    /// Arrivals of an open loop were cut off by the number of requests.
    pub(crate) cut_short: bool,
}

/// The schedule that the settings ask for: the same for the same seed.
///
/// # Errors
/// No request is due within the duration; prompts that share a first block.
pub(crate) fn schedule(settings: &Settings) -> Result<Schedule> {
    let drain_ns = Limits::default().total_ns;
    let mut plan = Plan {
        drain_ns,
        ..Plan::default()
    };
    let mut cut_short = false;
    match settings.load {
        Load::Closed { streams } => {
            plan.horizon_ns = settings.duration_ns.unwrap_or(FOREVER);
            plan.closed = vec![ClosedLoop {
                streams,
                first_id: RequestId(0),
                bodies: bodies(settings, settings.num_prompts),
            }];
        }
        Load::Burst | Load::Open { .. } => {
            let offsets = offsets(settings)?;
            let Some(&last) = offsets.last() else {
                bail!("--duration: no request is due by then; give a longer one or a higher rate");
            };
            cut_short = settings.duration_ns.is_some() && offsets.len() == settings.num_prompts;
            plan.horizon_ns = settings.duration_ns.unwrap_or(last + Nanos(1));
            let bodies = bodies(settings, offsets.len());
            let due = offsets.into_iter().zip(bodies).enumerate();
            let request = |(index, (offset_ns, body))| OpenRequest {
                id: RequestId(index as u64),
                offset_ns,
                body,
            };
            plan.open = due.map(request).collect();
        }
    }
    first_blocks_unique(&all_bodies(&plan), BLOCK)?;
    Ok(Schedule { plan, cut_short })
}

/// When the requests of an open loop are due.
fn offsets(settings: &Settings) -> Result<Vec<Nanos>> {
    let arrivals = match settings.load {
        Load::Open {
            rate_per_s,
            burstiness: 1.0,
        } => Arrivals::Poisson { rate_per_s },
        Load::Open {
            rate_per_s,
            burstiness: shape,
        } => Arrivals::Gamma { rate_per_s, shape },
        Load::Burst | Load::Closed { .. } => Arrivals::Burst {
            count: settings.num_prompts,
        },
    };
    let mut stream = Stream::new(settings.seed, "bench/arrivals");
    let horizon = settings.duration_ns.unwrap_or(FOREVER);
    let offsets = arrivals.offsets(horizon, settings.num_prompts, &mut stream)?;
    if settings.duration_ns.is_none() && offsets.len() < settings.num_prompts {
        bail!(
            "--request-rate: {} requests would take more than a week",
            settings.num_prompts
        );
    }
    Ok(offsets)
}

fn bodies(settings: &Settings, count: usize) -> Vec<PlannedBody> {
    let mut stream = Stream::new(settings.seed, "bench/prompts");
    let words = match settings.input_unit {
        InputUnit::Ids => Vec::new(),
        InputUnit::Text => words(),
    };
    let mut body = || {
        let prompt = prompt(settings, settings.input_len, &words, &mut stream);
        let planned = u32::try_from(settings.input_len).unwrap_or(u32::MAX);
        let mut body = PlannedBody::of(CLASS, prompt, planned, settings.output_len);
        body.ignore_eos = settings.ignore_eos;
        body.planned_hit_tokens = Some(0);
        body
    };
    (0..count).map(|_| body()).collect()
}

fn prompt(
    settings: &Settings,
    length: usize,
    words: &[&str],
    stream: &mut Stream,
) -> PlannedPrompt {
    let (lo, hi) = settings.ids;
    let content = match settings.input_unit {
        InputUnit::Ids => {
            let mut id = || lo + stream.below(u64::from(hi - lo)) as u32;
            return PlannedPrompt::Ids((0..length).map(|_| id()).collect());
        }
        InputUnit::Text => text(length, words, stream),
    };
    match settings.api {
        Api::Completions => PlannedPrompt::Text(content),
        Api::Chat => PlannedPrompt::Chat(vec![ChatTurn {
            role: "user".to_owned(),
            content,
        }]),
    }
}

/// A prompt of `length` tokens or words that is not part of the schedule.
pub(crate) fn probe(settings: &Settings, length: usize, nonce: u64) -> pb_contract::wire::Prompt {
    let mut stream = Stream::new(nonce, "bench/probe");
    match settings.input_unit {
        InputUnit::Text => pb_contract::wire::Prompt::Text(text(length, &words(), &mut stream)),
        InputUnit::Ids => {
            let (lo, hi) = settings.ids;
            let mut id = || lo + stream.below(u64::from(hi - lo)) as u32;
            pb_contract::wire::Prompt::Ids((0..length).map(|_| id()).collect())
        }
    }
}

fn text(length: usize, words: &[&str], stream: &mut Stream) -> String {
    let mut word = || words[stream.below(words.len() as u64) as usize];
    (0..length).map(|_| word()).collect::<Vec<_>>().join(" ")
}

/// The short lower-case words of the prose, each once: most tokenizers know them as one token.
fn words() -> Vec<&'static str> {
    let plain =
        |word: &&str| (2..=8).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase());
    let words: BTreeSet<&str> = PROSE.split_whitespace().filter(plain).collect();
    words.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    fn settings(args: &[&str]) -> Settings {
        let fixed = [
            "prefillbench",
            "bench",
            "--base-url",
            "http://h:1",
            "--model",
            "m",
        ];
        let cli = Cli::parse_from(fixed.iter().chain(args));
        match cli.verb {
            Verb::Bench(args) => Settings::new(&args).unwrap(),
            _ => unreachable!(),
        }
    }

    #[test]
    fn a_seed_makes_one_schedule_and_another_seed_another() {
        let args = ["--request-rate", "50", "--num-prompts", "20", "--seed"];
        let of = |seed: &'static str| {
            schedule(&settings(&[&args[..], &[seed]].concat()))
                .unwrap()
                .plan
        };
        assert_eq!(of("1"), of("1"));
        assert_ne!(of("1").open[0].body, of("2").open[0].body);
        assert_ne!(of("1").open[0].offset_ns, of("2").open[0].offset_ns);
    }

    #[test]
    fn prompts_have_the_length_and_the_ids_that_were_asked_for() {
        let args = [
            "--num-prompts",
            "9",
            "--random-input-len",
            "33",
            "--random-output-len",
            "5",
            "--random-range-ids",
            "100..164",
        ];
        let plan = schedule(&settings(&args)).unwrap().plan;
        assert_eq!(plan.open.len(), 9);
        for request in &plan.open {
            let ids = request.body.prompt.ids().unwrap();
            assert_eq!((ids.len(), request.body.max_tokens), (33, 5));
            assert!(ids.iter().all(|id| (100..164).contains(id)));
            assert_eq!(request.offset_ns, Nanos::ZERO);
            assert!(!request.body.ignore_eos);
        }
    }

    #[test]
    fn a_chat_is_one_message_of_as_many_words() {
        let args = [
            "--num-prompts",
            "2",
            "--api",
            "chat",
            "--random-input-len",
            "7",
        ];
        let plan = schedule(&settings(&args)).unwrap().plan;
        let PlannedPrompt::Chat(turns) = &plan.open[1].body.prompt else {
            panic!("{:?}", plan.open[1].body.prompt);
        };
        assert_eq!((turns.len(), turns[0].role.as_str()), (1, "user"));
        assert_eq!(turns[0].content.split(' ').count(), 7);
    }

    #[test]
    fn a_duration_bounds_the_arrivals_and_too_few_requests_show() {
        let args = [
            "--request-rate",
            "100",
            "--duration",
            "10",
            "--random-input-len",
            "16",
        ];
        let whole = schedule(&settings(&args)).unwrap();
        // 1000 expected, standard deviation 32: six of them.
        let count = whole.plan.open.len();
        assert!((810..1190).contains(&count), "{count}");
        assert!(!whole.cut_short);
        assert_eq!(whole.plan.horizon_ns, Nanos::from_secs(10));
        let cut = schedule(&settings(&[&args[..], &["--num-prompts", "20"]].concat())).unwrap();
        assert_eq!(cut.plan.open.len(), 20);
        assert!(cut.cut_short);
    }

    #[test]
    fn a_closed_loop_has_its_slots_and_requests() {
        let args = ["--max-concurrency", "3", "--num-prompts", "8"];
        let plan = schedule(&settings(&args)).unwrap().plan;
        assert!(plan.open.is_empty());
        assert_eq!(
            (plan.closed[0].streams, plan.closed[0].bodies.len()),
            (3, 8)
        );
    }
}
