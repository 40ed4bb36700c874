//! Requests with what makes the cache cold for them.

use anyhow::Result;
use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use pb_contract::wire::Prompt;
use pb_target::ColdState;

/// A plan whose prompts begin as `state` wants it.
///
/// # Errors
/// A prompt that is too short to be salted.
pub(crate) fn plan(state: &ColdState, mut plan: Plan) -> Result<Plan> {
    if state.salt.is_none() {
        return Ok(plan);
    }
    let open = plan.open.iter_mut().map(|request| &mut request.body);
    let closed = plan.closed.iter_mut().flat_map(|part| &mut part.bodies);
    for body in open.chain(closed) {
        prompt(state, &mut body.prompt)?;
    }
    for session in &mut plan.sessions {
        for (index, turn) in session.turns.iter_mut().enumerate() {
            // A turn that takes its history over begins with the first one.
            if index == 0 || !turn.history {
                prompt(state, &mut turn.body.prompt)?;
            }
        }
    }
    Ok(plan)
}

/// As [`plan`], of single requests.
///
/// # Errors
/// As [`plan`].
pub(crate) fn bodies(state: &ColdState, mut bodies: Vec<PlannedBody>) -> Result<Vec<PlannedBody>> {
    for body in &mut bodies {
        prompt(state, &mut body.prompt)?;
    }
    Ok(bodies)
}

fn prompt(state: &ColdState, prompt: &mut PlannedPrompt) -> Result<()> {
    match prompt {
        PlannedPrompt::Ids(ids) => {
            if let Prompt::Ids(salted) = state.dress(&Prompt::Ids(std::mem::take(ids)))? {
                *ids = salted;
            }
        }
        PlannedPrompt::Text(content) => text(state, content)?,
        PlannedPrompt::Chat(turns) => {
            for turn in turns.iter_mut().take(1) {
                text(state, &mut turn.content)?;
            }
        }
    }
    Ok(())
}

fn text(state: &ColdState, content: &mut String) -> Result<()> {
    if let Prompt::Text(salted) = state.dress(&Prompt::Text(std::mem::take(content)))? {
        *content = salted;
    }
    Ok(())
}
