//! The result of a validation over HTTP, for programs and for people.

use std::fmt::Write;

use pb_contract::manifest::{Machine, ToolVersion};
use pb_judge::numerics::{Check, CheckName, Outcome, plain};
use pb_judge::remote::{
    Compared, Flip, NotCompared, Planted, Precision, RemoteStats, RemoteValidation, RemoteVerdict,
};
use pb_judge::verdict::Verdict;
use serde::Serialize;

use super::ask::{Asker, Source};
use super::remote::Design;
use crate::args::ValidateArgs;
use crate::console::wrapped;
use crate::machine;
use crate::validate::table::word;
use crate::verbs::leak::tenants::shown_command;

/// Version of the document; raised when a reader would misread an old one.
const SCHEMA_VERSION: u32 = 1;

/// Width of running text.
const WIDTH: usize = 96;

/// The document.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Document {
    schema_version: u32,
    kind: &'static str,
    receipt: Receipt,
    base_url: String,
    /// What answers there, and its version.
    server: String,
    against: Option<String>,
    against_server: Option<String>,
    model: String,
    precision: Precision,
    prompts: usize,
    prompt_tokens: usize,
    output_tokens: usize,
    listed: usize,
    background: usize,
    seed: u64,
    nonce: u64,
    /// How the log-probabilities of prompts were asked for; None when the server gives none.
    prompt_source: Option<&'static str>,
    #[serde(flatten)]
    found: RemoteValidation,
    /// The verdict over all.
    verdict: Verdict,
    exit_code: u8,
}

/// What validated, when, and where it ran.
#[derive(Clone, Debug, Serialize)]
struct Receipt {
    created: String,
    command: Vec<String>,
    tool: ToolVersion,
    machine: Machine,
}

impl Receipt {
    fn new() -> Receipt {
        Receipt {
            created: jiff::Timestamp::now()
                .strftime("%Y-%m-%dT%H:%M:%SZ")
                .to_string(),
            command: shown_command(std::env::args()),
            tool: machine::tool(),
            machine: machine::machine(),
        }
    }
}

impl Document {
    pub(super) fn new(
        args: &ValidateArgs,
        a: &Asker,
        b: Option<&Asker>,
        source: Option<Source>,
        design: Design,
        found: RemoteValidation,
    ) -> Document {
        let verdict = found.verdict();
        Document {
            schema_version: SCHEMA_VERSION,
            kind: "remote_validation",
            receipt: Receipt::new(),
            base_url: a.url.clone(),
            server: a.server(),
            against: b.map(|b| b.url.clone()),
            against_server: b.map(Asker::server),
            model: args.model.clone().unwrap_or_default(),
            precision: design.precision,
            prompts: args.prompts,
            prompt_tokens: design.prompt_len,
            output_tokens: design.output_len,
            listed: design.listed,
            background: design.background,
            seed: args.seed,
            nonce: design.nonce,
            prompt_source: source.map(Source::name),
            found,
            exit_code: verdict.exit_code(),
            verdict,
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// As people read it, at most 100 columns wide.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.head(&mut out);
        for compared in &self.found.compared {
            comparison(&mut out, compared);
        }
        self.planted(&mut out);
        self.fallen_away(&mut out);
        let word = match self.exit_code {
            0 if !self.found.not_compared.is_empty() => {
                "PASS of what was compared: no state changed the answers, and the limits see a \
                 wrong context"
            }
            0 => "PASS: no state changed the answers, and the limits see a wrong context",
            3 => "INCONCLUSIVE",
            _ => "FAIL",
        };
        line(&mut out, "");
        line(&mut out, word);
        if !self.verdict.is_pass() {
            bullets(&mut out, &self.verdict);
        }
        out.pop();
        out
    }

    fn head(&self, out: &mut String) {
        let precision = match self.precision {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        };
        let (url, model) = (&self.base_url, &self.model);
        line(out, &format!("A  {url} ({}), {model}", self.server));
        if let Some((against, server)) = self.against.as_ref().zip(self.against_server.as_ref()) {
            line(out, &format!("B  {against} ({server})"));
        }
        line(
            out,
            &format!(
                "{} prompts of {} tokens and {} greedy tokens; {} tokens listed; limits for \
                 {precision}",
                self.prompts, self.prompt_tokens, self.output_tokens, self.listed
            ),
        );
        let source = self
            .prompt_source
            .unwrap_or("not given by this server: greedy tokens alone are compared");
        line(out, &format!("log-probabilities of prompts: {source}"));
    }

    fn planted(&self, out: &mut String) {
        line(out, "");
        line(
            out,
            "What the same limits say of server A with an altered context",
        );
        line(
            out,
            &format!(
                "  {:<42}{:<15}{:<14}{:>9}{:>9}{:>9}",
                "", "rows", "", "KL mean", "KL max", "flips"
            ),
        );
        for planted in &self.found.planted {
            line(out, &planted_row(planted));
        }
    }
    /// What was not compared, by reason.
    fn fallen_away(&self, out: &mut String) {
        let mut rest = &self.found.not_compared[..];
        while let [first, ..] = rest {
            let same = |n: &&NotCompared| n.why == first.why && n.rows == first.rows;
            let count = rest.iter().take_while(same).count();
            let names: Vec<&str> = rest[..count].iter().map(|n| &n.name[..]).collect();
            let text = format!(
                "Not compared by {}: {}; {}",
                first.rows,
                names.join(", "),
                first.why
            );
            line(out, "");
            for text in wrapped(&text, WIDTH) {
                line(out, &text);
            }
            rest = &rest[count..];
        }
    }
}

fn line(out: &mut String, text: &str) {
    // OK because writing into a String cannot fail.
    writeln!(out, "{text}").expect("a String takes any text");
}

fn bullets(out: &mut String, verdict: &Verdict) {
    let list = match verdict {
        Verdict::Pass => return,
        Verdict::Fail { reasons } => reasons,
        Verdict::Inconclusive { why } => why,
    };
    for reason in list {
        for (n, text) in wrapped(reason, WIDTH).iter().enumerate() {
            line(out, &format!("{} {text}", if n == 0 { "-" } else { " " }));
        }
    }
}

fn planted_row(planted: &Planted) -> String {
    let stats = &planted.result.stats;
    let kl = |pick: fn(&pb_judge::numerics::KlSummary) -> f64| {
        stats.kl.as_ref().map_or("-".to_owned(), |k| short(pick(k)))
    };
    let seen = match (planted.is_rejected(), planted.required) {
        (true, _) => "rejected",
        (false, true) => "NOT SEEN",
        (false, false) => "not seen",
    };
    format!(
        "  {:<42}{:<15}{seen:<14}{:>9}{:>9}{:>9}",
        planted.name,
        planted.rows,
        kl(|k| k.mean),
        kl(|k| k.max),
        stats.flips.real,
    )
}

/// Two digits, small ones with an exponent: columns are narrow and span many orders.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if (0.001..1000.0).contains(&size) => plain(value),
        _ => format!("{value:.1e}"),
    }
}

fn comparison(out: &mut String, compared: &Compared) {
    let RemoteVerdict {
        stats,
        checks,
        verdict,
        ..
    } = &compared.result;
    let verdict_word = match (&compared.unproven, verdict.is_fail()) {
        (Some(_), false) => "not proven",
        _ => word(verdict),
    };
    line(out, "");
    line(
        out,
        &format!(
            "{:<20}{:<15}{verdict_word:<13} {} rows of {} prompts",
            compared.name, compared.rows, stats.rows, stats.prompts
        ),
    );
    for text in wrapped(&compared.evidence, WIDTH - 2) {
        line(out, &format!("  {text}"));
    }
    if let Some(why) = &compared.unproven {
        line(out, &format!("  not proven: {why}"));
    }
    for check in checks {
        line(out, &check_row(check));
    }
    for text in beside(stats) {
        line(out, &format!("  {text}"));
    }
}

fn check_row(check: &Check) -> String {
    let value = check.value.map_or("unknown".to_owned(), short);
    let used = match check.share {
        Some(share) if share.is_finite() => format!("{:.1} % of the limit", 100.0 * share),
        Some(_) => "beyond the limit".to_owned(),
        None => "nothing measured".to_owned(),
    };
    let mark = match check.outcome {
        Outcome::Pass => "",
        Outcome::Fail => "  FAIL",
        Outcome::Inconclusive => "  undecided",
    };
    let name = match check.name {
        CheckName::DecidableFlips => "top-1 flips that are no near tie",
        CheckName::Finite => "log-probabilities that are none",
        other => other.words(),
    };
    let limit = short(check.limit);
    format!("    {name:<34}{value:>10}  limit {limit:<9}{used}{mark}")
}

/// What is reported without a limit.
fn beside(stats: &RemoteStats) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), short);
    let percent =
        |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{:.2} %", 100.0 * v));
    let flips = &stats.flips;
    let mut lines = vec![
        format!(
            "log-probability of the token: RMS change {}, largest {} nats; {} outside the lists",
            number(stats.rms_delta_logprob),
            number(stats.max_delta_logprob),
            percent(stats.unseen)
        ),
        format!(
            "same tokens listed {}, pairs ranked alike {}; {} near ties, {} of {} rows decidable",
            percent(stats.overlap),
            percent(stats.concordance),
            flips.near_ties,
            flips.decidable_rows,
            stats.rows
        ),
    ];
    if let Some(first) = stats.divergences.first() {
        let real = stats.divergences.iter();
        let near = real.filter(|d| matches!(d.flip, Flip::NearTie { .. }));
        lines.push(format!(
            "{} of {} texts part, {} at a near tie; the first after {} tokens of prompt {}",
            stats.divergences.len(),
            stats.prompts,
            near.count(),
            first.after_tokens,
            first.prompt
        ));
    }
    lines
}
