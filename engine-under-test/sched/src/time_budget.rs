//! The largest chunk whose predicted step time is within a budget.
//!
//! A budget of tokens bounds work only roughly: a chunk far into a long prompt, or beside many
//! decodes with long contexts, takes longer than its tokens tell. This policy learns a
//! model of step time from the steps it has seen and cuts so that the step stays within
//! `step_budget_ns`. One chunk of `min_chunk` tokens is always allowed, so that a prompt
//! progresses even where the decodes alone exceed the budget.
//!
//! Until six steps with prompts were seen there is nothing to predict from: the
//! prompt tokens of a step then start at `min_chunk` and double. Nothing but the observed
//! durations enters, so the same durations give the same schedule.

use pb_contract::{EngineConfig, TimeBudgetOptions};

use crate::adaptive_load::Allowance;
use crate::build::frame;
use crate::chunked::{Frame, Share};
use crate::error::PlanError;
use crate::policy::{Allocator, Observation, Policy, SeqView, StepPlan, View};
use crate::step_model::{StepModel, Work};

/// Steps with prompts after which the model is used.
pub(crate) const WARM_UP_STEPS: u32 = 6;

/// The policy `time_budget`.
#[derive(Clone, Debug)]
pub struct TimeBudget {
    frame: Frame,
    options: TimeBudgetOptions,
    model: StepModel,
    prompt_steps: u32,
}

impl TimeBudget {
    /// The policy with the limits and the time budget of `config`, whatever policy that names.
    ///
    /// # Errors
    /// When a size is zero.
    pub fn from_config(config: &EngineConfig) -> Result<Self, PlanError> {
        let (frame, options) = (frame(config), config.scheduling.time_budget);
        frame.limits.validate(frame.chunked)?;
        if options.step_budget_ns == 0 {
            let key = "scheduling.time_budget.step_budget_ns";
            return Err(PlanError::Zero { key });
        }
        if options.min_chunk == 0 {
            let key = "scheduling.time_budget.min_chunk";
            return Err(PlanError::Zero { key });
        }
        Ok(TimeBudget {
            frame,
            options,
            model: StepModel::default(),
            prompt_steps: 0,
        })
    }

    /// Predicted nanoseconds of a step with these chunks (tokens, context before them) and
    /// decodes; none while the model has seen too little.
    pub fn predict_ns(
        &self,
        prefill: &[(usize, usize)],
        decode_seqs: usize,
        decode_context: usize,
    ) -> Option<f64> {
        let decodes = Work::decodes(decode_seqs, decode_context);
        let work = prefill.iter().fold(decodes, |work, &(tokens, context)| {
            work.with_chunk(tokens, context)
        });
        (self.prompt_steps >= WARM_UP_STEPS).then(|| self.model.predict_ns(work))
    }
}

impl Policy for TimeBudget {
    fn name(&self) -> &'static str {
        "time_budget"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        let TimeBudgetOptions {
            step_budget_ns,
            min_chunk,
        } = self.options;
        if self.prompt_steps < WARM_UP_STEPS {
            let tokens = min_chunk.saturating_mul(1 << self.prompt_steps);
            return self.frame.plan(view, alloc, &mut Allowance { tokens });
        }
        let decodes = view.running.iter().filter(|seq| SeqView::is_decode(seq));
        let keys = decodes.clone().map(|seq| seq.num_tokens).sum();
        let mut share = Predicted {
            model: &self.model,
            work: Work::decodes(decodes.count(), keys),
            budget_ns: step_budget_ns as f64,
            min_chunk,
            prompts: 0,
        };
        self.frame.plan(view, alloc, &mut share)
    }

    fn observe(&mut self, step: &Observation) {
        if step.prefill.is_empty() && step.decode_seqs == 0 {
            return;
        }
        let decodes = Work::decodes(step.decode_seqs, step.decode_context);
        let chunks = step.prefill.iter();
        let work = chunks.fold(decodes, |work, &(tokens, context)| {
            work.with_chunk(tokens, context)
        });
        self.model.observe(work, step.duration_ns);
        self.prompt_steps += u32::from(!step.prefill.is_empty());
    }
}

/// What the budget of time leaves for the next prompt.
struct Predicted<'a> {
    model: &'a StepModel,
    work: Work,
    budget_ns: f64,
    min_chunk: usize,
    /// Prompts in the step.
    prompts: usize,
}

impl Share for Predicted<'_> {
    fn tokens(&self, start: usize, wanted: usize, _used: usize) -> usize {
        let within = |tokens: usize| {
            let work = self.work.with_chunk(tokens, start);
            self.model.predict_ns(work) <= self.budget_ns
        };
        // Largest count within the budget; the prediction never falls with the count.
        let (mut fits, mut too_many) = (0, wanted + 1);
        while fits + 1 < too_many {
            let middle = fits + (too_many - fits) / 2;
            if within(middle) {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        let least = self.min_chunk.min(wanted);
        match fits >= least {
            true => fits,
            // Scraps below the minimum are not worth a launch, but one prompt must go on.
            false if self.prompts == 0 => least,
            false => 0,
        }
    }

    fn taken(&mut self, start: usize, count: usize) {
        self.work = self.work.with_chunk(count, start);
        self.prompts += 1;
    }
}
