//! Whole conversations of a ShareGPT file.
//!
//! As a trace such a file gives the first question of each conversation, as `vllm bench serve`
//! takes it. A benchmark of prefix caches wants the turns after it too.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use crate::trace::error::TraceError;
use crate::trace::formats::{TraceFormat, conversation, is_user};
use crate::trace::reader::open_file;
use crate::trace::records::Records;

/// Questions and answers in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// Each question with its answer; a last question without an answer is left out.
    pub turns: Vec<(String, String)>,
}

/// The conversations of a file, one at a time.
#[derive(Debug)]
pub struct Conversations {
    records: Records<BufReader<File>>,
    ended: bool,
}

impl Conversations {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let source = open_file(path)?;
        let name = path.display().to_string();
        Ok(Conversations {
            records: Records::new(source, &name, TraceFormat::ShareGpt.framing()),
            ended: false,
        })
    }

    fn next_conversation(&mut self) -> Result<Option<Conversation>, TraceError> {
        let Some((record, place)) = self.records.next()? else {
            return Ok(None);
        };
        let mut found = Conversation::default();
        let mut question = None;
        for (speaker, text) in conversation(record, place)? {
            match (is_user(&speaker), question.take()) {
                (true, None) => question = Some(text),
                (false, Some(asked)) => found.turns.push((asked, text)),
                // Two of one speaker in a row: what follows has no clear order.
                _ => break,
            }
        }
        Ok(Some(found))
    }
}

impl Iterator for Conversations {
    type Item = Result<Conversation, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let found = self.next_conversation();
        self.ended = !matches!(found, Ok(Some(_)));
        found.transpose()
    }
}
