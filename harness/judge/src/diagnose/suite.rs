//! A suite file as text.

use serde_json::{Map, Value, json};

use super::experiment::Experiment;

/// Token ids that this project's generated models know.
const SYNTHETIC_IDS: &str = "10..250";
/// Least change, as a share, that an experiment claims.
const MARGIN: f64 = 0.1;

/// The servers of an experiment.
pub(super) enum Servers {
    /// This project's engine, with the changes of each arm.
    Engine {
        /// Settings of every arm.
        settings: Map<String, Value>,
        /// Arms and what differs in each.
        arms: Vec<(&'static str, Map<String, Value>)>,
    },
    /// Servers that run already.
    Running {
        /// Arms and their addresses.
        arms: Vec<(&'static str, String)>,
        /// What has to be started first.
        by_hand: String,
    },
}

/// A setting of the load: under each of its values the arms are compared.
pub(super) struct Varied {
    /// Name of the factor.
    pub(super) factor: &'static str,
    /// The setting.
    pub(super) key: &'static str,
    /// Its values.
    pub(super) values: Vec<u64>,
}

/// What is expected of two arms.
pub(super) struct Expected {
    metric: &'static str,
    baseline: String,
    candidate: String,
    expect: Option<&'static str>,
    when: Option<String>,
}

impl Expected {
    fn new(
        metric: &'static str,
        baseline: &str,
        candidate: &str,
        expect: Option<&'static str>,
    ) -> Expected {
        Expected {
            metric,
            baseline: baseline.to_owned(),
            candidate: candidate.to_owned(),
            expect,
            when: None,
        }
    }

    /// Under one condition.
    pub(super) fn when(mut self, condition: String) -> Expected {
        self.when = Some(condition);
        self
    }

    /// The candidate's value is lower.
    pub(super) fn lower(metric: &'static str, baseline: &str, candidate: &str) -> Expected {
        Expected::new(metric, baseline, candidate, Some("lower"))
    }

    /// The candidate's value is higher.
    pub(super) fn higher(metric: &'static str, baseline: &str, candidate: &str) -> Expected {
        Expected::new(metric, baseline, candidate, Some("higher"))
    }

    /// The two are shown to be alike.
    pub(super) fn equivalent(metric: &'static str, baseline: &str, candidate: &str) -> Expected {
        Expected::new(metric, baseline, candidate, Some("equivalent"))
    }

    /// The hypothesis says nothing of it, and a reader wants to know.
    pub(super) fn open(metric: &'static str, baseline: &str, candidate: &str) -> Expected {
        Expected::new(metric, baseline, candidate, None)
    }
}

/// A suite.
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) question: String,
    pub(super) reading: String,
    pub(super) servers: Servers,
    /// Settings of every cell, beyond those that all experiments have.
    pub(super) bench: Map<String, Value>,
    pub(super) varied: Option<Varied>,
    pub(super) expected: Vec<Expected>,
}

impl Suite {
    /// The experiment that this suite is.
    pub(super) fn experiment(self, varies: String, predicts: String) -> Experiment {
        Experiment {
            suite: self.text(),
            question: self.question,
            varies,
            predicts,
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("# Proposed by `prefillbench diagnose`.\n");
        if let Servers::Running { by_hand, .. } = &self.servers {
            text.push_str(&format!("# {by_hand}\n"));
        }
        text.push_str(&lines(&json!({
            "schema": 2,
            "name": self.name,
            "question": self.question,
            "reading": self.reading,
        })));
        text.push_str("\n[run]\nblocks = 6\n");
        self.servers_text(&mut text);
        if let Some(varied) = &self.varied {
            text.push_str(&format!("\n[factors.{}]\n", varied.factor));
            text.push_str(&lines(&json!({
                "key": varied.key,
                "values": varied.values,
            })));
        }
        for expected in &self.expected {
            text.push_str("\n[[hypothesis]]\n");
            let (metric, candidate) = (expected.metric, &expected.candidate);
            let when = expected.when.as_ref();
            let under = when.map_or_else(String::new, |when| format!(", {when}"));
            let mut table = json!({
                "name": format!("{metric} of {candidate}{under}"),
                "metric": metric,
                "baseline": expected.baseline,
                "candidate": candidate,
                "margin": MARGIN,
            });
            if let Some(expect) = expected.expect {
                table["expect"] = expect.into();
            }
            if let Some(when) = when {
                table["when"] = when.as_str().into();
            }
            text.push_str(&lines(&table));
        }
        text
    }

    fn servers_text(&self, text: &mut String) {
        let mut bench = json!({ "cache": "cold", "ignore_eos": true, "warmup": "2", "seed": 1 });
        if let Value::Object(bench) = &mut bench {
            bench.extend(self.bench.clone());
        }
        match &self.servers {
            Servers::Engine { settings, arms } => {
                let model = settings.get("model").and_then(Value::as_str);
                if model.is_some_and(|model| model.starts_with("synthetic")) {
                    bench["random_range_ids"] = SYNTHETIC_IDS.into();
                }
                text.push_str("\n[engine]\n");
                text.push_str(&lines(&Value::Object(settings.clone())));
                for (name, changes) in arms {
                    text.push_str(&format!("\n[arms.{name}]\n"));
                    if !changes.is_empty() {
                        text.push_str(&format!("\n[arms.{name}.engine]\n"));
                        text.push_str(&lines(&Value::Object(changes.clone())));
                    }
                }
            }
            Servers::Running { arms, .. } => {
                for (name, url) in arms {
                    text.push_str(&format!("\n[arms.{name}]\n"));
                    text.push_str(&lines(&json!({ "base_url": url })));
                }
            }
        }
        text.push_str("\n[bench]\n");
        text.push_str(&lines(&bench));
    }
}

/// The lines of a table of plain values.
fn lines(table: &Value) -> String {
    // OK because texts, numbers below 2^63, booleans and lists of these are what TOML holds.
    toml::to_string(table).expect("a table of plain values")
}
