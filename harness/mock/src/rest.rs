//! The part of a long stream that is not made yet.
//!
//! A stream of a million tokens would fill the memory if it were rendered before its first byte is
//! due. It is made piece by piece instead, each when the one before it has left.

use crate::answer::Part;
use crate::ask::Ask;
use crate::generate::Generator;
use crate::options::MockOptions;
use crate::parts::rendered;
use crate::render::Renderer;

/// Events made at once.
const BATCH_EVENTS: usize = 1_024;

/// What makes the rest of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    ask: Ask,
    /// What the generator and the renderer look at.
    options: MockOptions,
    number: u64,
    cached: usize,
    generator: Generator,
    /// Tokens made, and when the first was due.
    completion: u32,
    first_token_ns: u64,
}

impl Rest {
    /// All of the answer to the request with this number and so many cached tokens.
    pub(crate) fn new(
        generator: Generator,
        ask: &Ask,
        options: &MockOptions,
        (number, cached): (u64, usize),
    ) -> Rest {
        Rest {
            ask: ask.clone(),
            // Scripts and recordings stay where they are.
            options: MockOptions {
                max_model_len: options.max_model_len,
                tokenizer: options.tokenizer,
                timing: options.timing.clone(),
                style: options.style.clone(),
                persona: options.persona,
                ..MockOptions::default()
            },
            number,
            cached,
            generator,
            completion: 0,
            first_token_ns: 0,
        }
    }

    /// Tokens that are left, of all choices.
    pub(crate) fn tokens(&self) -> u64 {
        u64::from(self.generator.tokens_left()) * u64::from(self.ask.choices)
    }

    /// Nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.generator.is_over()
    }

    /// Why the answer ends.
    pub(crate) fn finish(&self) -> &'static str {
        self.generator.finish()
    }

    /// Some more of the stream: bytes and their parts.
    pub(crate) fn next(&mut self) -> (Vec<u8>, Vec<Part>) {
        let events = self.generator.next(&self.ask, &self.options, BATCH_EVENTS);
        let style = &self.options.style;
        let mut renderer = Renderer::new(&self.ask, style, self.number, self.cached);
        renderer.completion = self.completion;
        renderer.first_token_ns = self.first_token_ns;
        let made = rendered(&events, &mut renderer);
        (self.completion, self.first_token_ns) = (renderer.completion, renderer.first_token_ns);
        made
    }
}
