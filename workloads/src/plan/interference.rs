//! The interference workload as a data set: its plan, in any form.

use pb_contract::plan::{Plan, PlannedPrompt};

use super::build::Builder;
use super::{check_bytes, check_requests};
use crate::dataset::Drawn;
use crate::error::{DatasetError, WorkloadError};
use crate::interference::{InterferenceDataset, interference};
use crate::realise::{Name, Slice};
use crate::shape::LoadShape;
use crate::text::TextSource;

/// Tokens of the text that the prompts are cut from.
const TEXT_TOKENS: u32 = 1 << 16;

impl Builder<'_> {
    /// Plans the workload, which has arrivals of its own.
    pub(super) fn interference(
        &mut self,
        dataset: &InterferenceDataset,
        shape: &LoadShape,
        key: u64,
    ) -> Result<Drawn, DatasetError> {
        let bare = LoadShape {
            duration_s: shape.duration_s,
            ..LoadShape::default()
        };
        if *shape != bare {
            let fix = "the interference workload has arrivals of its own: leave arrival, rate, \
                       concurrency, number and ramp out, and set its own parameters";
            return Err(WorkloadError::parameter("dataset_name", "interference", fix).into());
        }
        let mut params = dataset.arm()?;
        if let Some(horizon_ns) = shape.duration() {
            params.horizon_ns = horizon_ns;
        }
        // Known before the prompts are made, of which there may be more than memory.
        let (requests, tokens) = params.size(self.options.seed)?;
        check_requests(requests)?;
        check_bytes(tokens.saturating_mul(size_of::<u32>() as u64))?;
        let text = Slice {
            name: Name::Own(0),
            tokens: TEXT_TOKENS,
        };
        let mut text = TextSource::new(self.speaker.tokens_of(&[text]), key)?;
        let mut made = interference(&params, &mut text, self.options.seed)?;
        if dataset.is_background_only() {
            made.open.clear();
        }
        self.take(made)?;
        self.plan.drain_ns = params.drain_ns;
        Ok(Drawn::default())
    }

    /// Takes a plan whose prompts are the speaker's tokens, in the order of its ids.
    fn take(&mut self, made: Plan) -> Result<(), DatasetError> {
        let Plan {
            open,
            closed,
            horizon_ns,
            ..
        } = made;
        for mut part in closed {
            for body in &mut part.bodies {
                *body = self.said(&body.class, &body.prompt, body.max_tokens)?;
            }
            self.plan.closed.push(part);
        }
        for mut request in open {
            let body = &request.body;
            request.body = self.said(&body.class, &body.prompt, body.max_tokens)?;
            self.plan.open.push(request);
        }
        self.plan.horizon_ns = horizon_ns;
        Ok(())
    }

    fn said(
        &mut self,
        class: &str,
        prompt: &PlannedPrompt,
        max_tokens: u32,
    ) -> Result<pb_contract::plan::PlannedBody, DatasetError> {
        let tokens = prompt.ids().unwrap_or_default().to_vec();
        let realised = self.speaker.rendered(tokens, self.tokenizer);
        self.keep(class, realised, max_tokens)
    }
}
