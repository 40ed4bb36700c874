//! Planning faults, planted on purpose so that the laws can prove that they would notice.

use pb_contract::Fault;

use crate::policy::{Allocator, Observation, Policy, Requeue, SeqView, StepPlan, View};

/// A policy that is shown a falsified queue.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) inner: Box<dyn Policy>,
    pub(crate) fault: Fault,
}

impl Policy for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        match self.fault {
            Fault::Starvation => {
                let waiting = without_oldest(view.waiting);
                let view = View {
                    waiting: &waiting,
                    ..*view
                };
                self.inner.plan(&view, alloc)
            }
            Fault::DecodeSkipped => {
                let running = without_last_decode(view);
                let view = View {
                    running: &running,
                    ..*view
                };
                self.inner.plan(&view, alloc)
            }
            _ => self.inner.plan(view, alloc),
        }
    }

    fn observe(&mut self, step: &Observation) {
        self.inner.observe(step);
    }

    fn requeue(&self) -> Requeue {
        self.inner.requeue()
    }
}

/// The waiting requests but for the oldest, as long as another one waits.
fn without_oldest(waiting: &[SeqView]) -> Vec<SeqView> {
    let oldest = waiting.iter().map(|seq| seq.arrival).min();
    let passed_over = |seq: &SeqView| waiting.len() > 1 && Some(seq.arrival) == oldest;
    let kept = waiting.iter().filter(|seq| !passed_over(seq));
    kept.copied().collect()
}

/// The running requests but for the last decode, as long as there are prompts. Its places pass to
/// another one, so that nothing else is wrong.
fn without_last_decode(view: &View<'_>) -> Vec<SeqView> {
    let mut running = view.running.to_vec();
    let last = running.iter().rposition(SeqView::is_decode);
    let prompts = !view.waiting.is_empty() || running.iter().any(|seq| !seq.is_decode());
    if let Some(last) = last.filter(|_| prompts && running.len() > 1) {
        let skipped = running.remove(last);
        running[0].places += skipped.places;
    }
    running
}
