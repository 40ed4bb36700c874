//! Events as the parts of a body.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::answer::Part;
use crate::event::Event;
use crate::log::WriteKind;
use crate::render::Renderer;

/// Events as bytes and the parts that these are.
pub(crate) fn rendered(events: &[Event], renderer: &mut Renderer<'_>) -> (Vec<u8>, Vec<Part>) {
    let (mut data, mut parts) = (Vec::new(), Vec::with_capacity(events.len()));
    // Most events repeat the bytes of an earlier one: rendering must not make others late.
    let mut known: BTreeMap<&str, Range<usize>> = BTreeMap::new();
    for event in events {
        let from = data.len();
        let text = renderer.plain_text(event);
        match text.and_then(|text| known.get(text)) {
            Some(range) => {
                renderer.completion += event.tokens;
                data.extend_from_within(range.clone());
            }
            None => {
                let bytes = renderer.event(event);
                data.extend_from_slice(&bytes);
                known.extend(text.map(|text| (text, from..data.len())));
            }
        }
        if data.len() > from {
            parts.push(Part {
                at_ns: event.at_ns,
                end: data.len(),
                tokens: event.tokens,
                kind: kind(event),
            });
        }
    }
    (data, parts)
}

fn kind(event: &Event) -> WriteKind {
    match event {
        Event { raw: Some(_), .. } => WriteKind::Raw,
        Event { error: Some(_), .. } => WriteKind::Error,
        Event { tokens: 1.., .. } => WriteKind::Token,
        Event { role: Some(_), .. } => WriteKind::Role,
        Event {
            finish: Some(_), ..
        } => WriteKind::Finish,
        Event { done: true, .. } => WriteKind::Done,
        Event {
            comment: Some(_), ..
        } => WriteKind::Comment,
        _ => WriteKind::Usage,
    }
}
