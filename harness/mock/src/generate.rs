//! Answers that no script describes: token times drawn from the configured distributions.

use pb_contract::Stream;

use crate::ask::{Api, Ask};
use crate::event::{Event, UsageNote};
use crate::options::{MockOptions, Persona};

/// Latest instant of an event: longer than any server runs, and far from what a counter holds.
const LATEST_NS: f64 = 1e18;

/// The events of one answer, made as they are asked for. The first event carries one token, as a
/// prefill makes one; later events carry as many as the style bundles and go out when the last of
/// them is due.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    stream: Stream,
    /// When the last token is due that was made, or the first one.
    at_ns: f64,
    /// Tokens of each choice, and how many of them were made.
    count: u32,
    made: u32,
    finish: &'static str,
    begun: bool,
    over: bool,
}

impl Generator {
    /// Of the answer to the request with this number, `cached` prompt tokens being in the cache.
    pub(crate) fn new(ask: &Ask, options: &MockOptions, number: u64, cached: usize) -> Generator {
        let timing = &options.timing;
        let mut stream = Stream::new(options.seed, &format!("mock/answer/{number}"));
        let limit = most_tokens(ask, options);
        let stop = match &timing.stop_tokens {
            Some(dist) if !ask.ignore_eos => dist.draw(&mut stream).round().max(1.0) as u32,
            _ => u32::MAX,
        };
        let uncached = ask.prompt.len().saturating_sub(cached);
        let prefill_ns = timing.prefill_ns_per_token * uncached as f64;
        let at_ns = timing.ttft_ns.draw(&mut stream) + prefill_ns;
        Generator {
            stream,
            at_ns: at_ns.min(LATEST_NS),
            count: limit.min(stop),
            made: 0,
            finish: if stop < limit { "stop" } else { "length" },
            begun: false,
            over: false,
        }
    }

    /// Tokens of each choice.
    pub(crate) fn tokens(&self) -> u32 {
        self.count
    }

    /// Tokens of each choice that are still to be made.
    pub(crate) fn tokens_left(&self) -> u32 {
        self.count - self.made
    }

    /// All events were made.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Why the answer ends.
    pub(crate) fn finish(&self) -> &'static str {
        self.finish
    }

    /// The next events: about `most`, those of one instant together.
    pub(crate) fn next(&mut self, ask: &Ask, options: &MockOptions, most: usize) -> Vec<Event> {
        let timing = &options.timing;
        let mut events = Vec::new();
        if !self.begun && ask.api == Api::Chat && ask.stream && options.style.role_first {
            let first = self.at_ns;
            let role_ns = timing.role_ns.map_or(first, |at| first.min(at.0 as f64));
            events.extend((0..ask.choices).map(|choice| Event {
                choice,
                role: Some("assistant".into()),
                ..Event::at(role_ns as u64)
            }));
        }
        self.begun = true;
        while self.made < self.count && events.len() < most {
            let bundle = if self.made == 0 {
                1
            } else {
                options.style.bundle.max(1)
            };
            let tokens = bundle.min(self.count - self.made);
            if self.made > 0 {
                let gaps = (0..tokens).map(|_| timing.itl_ns.draw(&mut self.stream));
                self.at_ns = (self.at_ns + gaps.sum::<f64>()).min(LATEST_NS);
            }
            let all = self.made..self.made + tokens;
            let text: String = all.map(|n| options.tokenizer.generated(n)).collect();
            // The choices of a request are made side by side.
            events.extend((0..ask.choices).map(|choice| Event {
                choice,
                content: Some(text.clone()),
                tokens,
                usage: match ask.continuous_usage {
                    true => UsageNote::Served,
                    false => UsageNote::None,
                },
                ..Event::at(self.at_ns as u64)
            }));
            self.made += tokens;
        }
        if self.made == self.count && !self.over {
            self.over = true;
            self.end(&mut events, ask, options);
        }
        events
    }

    /// What follows the last token.
    fn end(&self, events: &mut Vec<Event>, ask: &Ask, options: &MockOptions) {
        let at_ns = self.at_ns as u64;
        finish_choices(events, ask, options.persona, self.finish);
        if ask.include_usage && !usage_is_in_finish(ask, options.persona) {
            events.push(Event {
                usage: UsageNote::Served,
                ..Event::at(at_ns)
            });
        }
        events.push(Event {
            done: true,
            ..Event::at(at_ns)
        });
    }
}

/// Output tokens at most.
fn most_tokens(ask: &Ask, options: &MockOptions) -> u32 {
    let room = options.max_model_len.saturating_sub(ask.prompt.len());
    let wanted = ask.max_tokens.unwrap_or(options.timing.default_max_tokens);
    wanted.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1)
}

/// llama.cpp puts the usage of a completion into the event with the finish reason.
fn usage_is_in_finish(ask: &Ask, persona: Persona) -> bool {
    persona != Persona::Vllm && ask.api == Api::Completions
}

/// Ends each choice: vLLM with the last token, llama.cpp with an event of its own, which has the
/// timings.
fn finish_choices(events: &mut Vec<Event>, ask: &Ask, persona: Persona, finish: &str) {
    let at_ns = events.last().map_or(0, |event| event.at_ns);
    if persona == Persona::Vllm {
        let choices = ask.choices as usize;
        for event in events.iter_mut().rev().take(choices) {
            event.finish = Some(finish.into());
        }
        return;
    }
    let usage = ask.include_usage && usage_is_in_finish(ask, persona);
    events.extend((0..ask.choices).map(|choice| Event {
        choice,
        content: (ask.api == Api::Completions).then(String::new),
        finish: Some(finish.into()),
        usage: match usage {
            true => UsageNote::Served,
            false => UsageNote::None,
        },
        timings: true,
        ..Event::at(at_ns)
    }));
}

#[cfg(test)]
mod tests {
    use pb_contract::Nanos;

    use super::*;
    use crate::dist::Dist;
    use crate::options::{Style, Timing};

    fn options() -> MockOptions {
        MockOptions {
            timing: Timing {
                ttft_ns: Dist::Fixed(5e6),
                prefill_ns_per_token: 1e5,
                itl_ns: Dist::Fixed(2e6),
                role_ns: Some(Nanos::from_millis(1)),
                ..Timing::default()
            },
            ..MockOptions::default()
        }
    }

    /// All events at once.
    fn generate(ask: &Ask, options: &MockOptions, number: u64, cached: usize) -> Vec<Event> {
        Generator::new(ask, options, number, cached).next(ask, options, usize::MAX)
    }

    fn ask(body: &str, options: &MockOptions) -> Ask {
        Ask::parse(Api::Completions, body.as_bytes(), options).unwrap()
    }

    #[test]
    fn the_first_token_waits_for_the_tokens_that_are_not_cached() {
        let options = options();
        let ask = ask(
            r#"{"prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":3}"#,
            &options,
        );
        let at = |cached| -> Vec<u64> {
            let events = generate(&ask, &options, 0, cached);
            events
                .iter()
                .filter(|e| e.tokens > 0)
                .map(|e| e.at_ns / 100_000)
                .collect()
        };
        // 5 ms + 0.1 ms for each of 10 or 2 tokens, then 2 ms a token.
        assert_eq!(at(0), [60, 80, 100]);
        assert_eq!(at(8), [52, 72, 92]);
    }

    #[test]
    fn choices_are_made_side_by_side_and_each_has_its_end() {
        let options = options();
        let ask = ask(r#"{"prompt":[1],"max_tokens":2,"n":3}"#, &options);
        let events = generate(&ask, &options, 0, 0);
        let tokens: Vec<(u32, bool)> = events
            .iter()
            .filter(|e| e.tokens > 0)
            .map(|e| (e.choice, e.finish.is_some()))
            .collect();
        let expected = [0, 1, 2].map(|n| (n, false)).into_iter();
        let expected: Vec<_> = expected.chain([0, 1, 2].map(|n| (n, true))).collect();
        assert_eq!(tokens, expected);
    }

    #[test]
    fn llama_cpp_ends_with_an_event_of_its_own_that_has_the_timings() {
        let mut options = options();
        options.persona = Persona::LlamaCpp { slots: 1 };
        let body = r#"{"prompt":[1],"max_tokens":2,"stream_options":{"include_usage":true}}"#;
        let events = generate(&ask(body, &options), &options, 0, 0);
        let kinds: Vec<(u32, bool, bool)> = events
            .iter()
            .map(|e| (e.tokens, e.timings, e.usage != UsageNote::None))
            .collect();
        let end = [(0, true, true), (0, false, false)];
        assert_eq!(kinds, [[(1, false, false); 2], end].concat());
    }

    #[test]
    fn bundles_keep_the_time_of_each_token() {
        let mut options = options();
        options.style = Style {
            bundle: 3,
            ..Style::default()
        };
        let ask = ask(r#"{"prompt":[],"max_tokens":6}"#, &options);
        let events = generate(&ask, &options, 0, 0);
        let tokens: Vec<(u64, u32)> = events
            .iter()
            .filter(|e| e.tokens > 0)
            .map(|e| (e.at_ns / 1_000_000, e.tokens))
            .collect();
        assert_eq!(tokens, [(5, 1), (11, 3), (15, 2)]);
    }

    #[test]
    fn row_74_only_ignore_eos_keeps_an_answer_from_stopping_early() {
        let mut options = options();
        options.timing.stop_tokens = Some(Dist::Fixed(2.0));
        for (ignore_eos, count, finish) in [(false, 2, "stop"), (true, 5, "length")] {
            let body = format!(r#"{{"prompt":[1],"max_tokens":5,"ignore_eos":{ignore_eos}}}"#);
            let events = generate(&ask(&body, &options), &options, 0, 0);
            assert_eq!(events.iter().map(|e| e.tokens).sum::<u32>(), count);
            let last = events.iter().rev().find_map(|e| e.finish.as_deref());
            assert_eq!(last, Some(finish));
        }
    }

    #[test]
    fn draws_depend_on_seed_and_number_only() {
        let mut options = options();
        options.timing.itl_ns = Dist::Exponential(1e6);
        let ask = ask(r#"{"prompt":[1],"max_tokens":9}"#, &options);
        let first = generate(&ask, &options, 3, 0);
        assert_eq!(first, generate(&ask, &options, 3, 0));
        assert_ne!(first, generate(&ask, &options, 4, 0));
        options.seed = 2;
        assert_ne!(first, generate(&ask, &options, 3, 0));
    }

    #[test]
    fn events_made_by_and_by_are_those_made_at_once() {
        for persona in [Persona::Vllm, Persona::LlamaCpp { slots: 1 }] {
            let mut options = options();
            options.persona = persona;
            options.timing.itl_ns = Dist::Exponential(1e6);
            let body = r#"{"prompt":[1],"max_tokens":20,"n":3,
                "stream_options":{"include_usage":true}}"#;
            let ask = ask(body, &options);
            let whole = generate(&ask, &options, 3, 0);
            for most in 1..70 {
                let mut generator = Generator::new(&ask, &options, 3, 0);
                let mut events = Vec::new();
                while !generator.is_over() {
                    let more = generator.next(&ask, &options, most);
                    assert!(!more.is_empty() && more.len() < most + 3 + 5);
                    events.extend(more);
                }
                assert_eq!(events, whole, "{most}");
                assert_eq!(generator.tokens_left(), 0);
                assert!(generator.next(&ask, &options, most).is_empty());
            }
        }
    }
}
