//! Whose numbers the cells that were left out may flatter.

use super::read::SuiteDir;

/// Which arms lost cells and which did not, and why: what is left out can favour those that lost
/// the cells in which they did badly.
pub(super) fn bias(suite: &SuiteDir) -> Option<String> {
    let mut arms: Vec<(&str, usize, usize)> = Vec::new();
    for cell in &suite.cells {
        let name = cell.note.arm.as_str();
        let at = arms.iter().position(|(known, ..)| *known == name);
        let at = at.unwrap_or_else(|| {
            arms.push((name, 0, 0));
            arms.len() - 1
        });
        arms[at].1 += usize::from(!cell.is_valid());
        arms[at].2 += 1;
    }
    let lost: Vec<&(&str, usize, usize)> = arms.iter().filter(|(_, lost, _)| *lost > 0).collect();
    if lost.is_empty() || lost.iter().all(|(_, lost, all)| lost == all) {
        return None;
    }
    // Arms that lost alike stand together.
    let mut alike: Vec<((usize, usize), Vec<&str>)> = Vec::new();
    for (arm, lost, all) in &lost {
        match alike.iter_mut().find(|(known, _)| *known == (*lost, *all)) {
            Some((_, arms)) => arms.push(arm),
            None => alike.push(((*lost, *all), vec![arm])),
        }
    }
    let each: Vec<String> = alike
        .iter()
        .map(|((lost, all), arms)| {
            let each = if arms.len() > 1 { " each" } else { "" };
            format!("{lost} of {all} cells{each} of `{}`", arms.join("`, `"))
        })
        .collect();
    let others = match arms.len() - lost.len() {
        0 => String::new(),
        1 => " and none of the other arm".to_owned(),
        n => format!(" and none of the {n} others"),
    };
    let reasons = suite.cells.iter().filter(|cell| !cell.is_valid());
    let mut kinds: Vec<String> = Vec::new();
    for reason in reasons.filter_map(|cell| {
        let all = cell.contradictions.iter().chain(&cell.note.reasons);
        all.map(|reason| reason.split(';').next().unwrap_or_default().to_owned())
            .next()
    }) {
        if !kinds.iter().any(|known| kind(known) == kind(&reason)) {
            kinds.push(reason);
        }
    }
    let why = match &kinds[..] {
        [] => String::new(),
        [first] => format!(", because {first}"),
        [first, rest @ ..] => format!(", because {first}, and for {} other reasons", rest.len()),
    };
    let whose = if lost.len() == 1 {
        "its numbers"
    } else {
        "the numbers of these arms"
    };
    Some(format!(
        "{}{others} were left out{why}: {whose} are of the other blocks, which may have been \
         easier.",
        each.join(", ")
    ))
}

/// Of a reason, what comes before its numbers says of which kind it is.
pub(super) fn kind(reason: &str) -> &str {
    let end = reason.find(|c: char| c.is_ascii_digit());
    &reason[..end.unwrap_or(reason.len())]
}
