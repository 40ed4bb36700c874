//! Recorded workloads: rows of public traces, their prompts as tokens, and how much they share.
//!
//! Most traces have no text. Some name the blocks of each prompt instead, so that equal names mean
//! equal tokens; [`PromptTokens`] turns names into token ids that share exactly what the trace
//! shares, and [`prefix_reuse`] says how many of them an ideal cache would find, which is the
//! check value for every replay.
//!
//! Reading is streamed, one record at a time and none longer than [`MAX_RECORD_BYTES`].
//! [`TraceReader`] takes unit and block size as documented for the [`TraceFormat`];
//! [`TraceFile`] looks at the whole file first, finds out what it can with its evidence, and
//! refuses what is ambiguous. [`inspect`] and [`validate`] are what the verb `trace` prints.
//!
//! ```
//! use pb_workloads::trace::{PromptTokens, TraceFormat, TraceReader, prefix_reuse};
//! let text = "\
//! {\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}
//! {\"timestamp\": 27, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [0, 2]}
//! ";
//! let reader = TraceReader::new(text.as_bytes(), "example.jsonl", TraceFormat::Mooncake);
//! let rows = reader.collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(prefix_reuse(&rows, 16, None).hit_tokens, 512);
//! let prompts = PromptTokens::new(0..32_000, 1)?;
//! assert_eq!(prompts.realise(&rows[0])[..512], prompts.realise(&rows[1])[..512]);
//! # Ok::<(), pb_workloads::trace::TraceError>(())
//! ```

mod blocks;
mod conversations;
mod detect;
mod error;
mod file;
mod formats;
mod inspect;
pub(crate) mod lru;
pub(crate) mod prompt;
mod reader;
mod records;
mod requests;
mod reuse;
mod row;
mod servegen;
mod shape;
mod spread;
mod time;
mod tree;
mod units;
mod validate;
mod write;

pub use blocks::{BlockRule, LastBlock};
pub use conversations::{Conversation, Conversations};
pub use detect::{Detection, detect};
pub use error::{Place, TraceError};
pub use file::{Rows, TraceFile, TraceOptions};
pub use formats::TraceFormat;
pub use inspect::{
    ArrivalStats, BlockStats, InspectOptions, Inspection, LengthStats, PoolReuse, TokenCounter,
    inspect,
};
pub use prompt::{MIN_VOCABULARY, PromptTokens};
pub use reader::TraceReader;
pub use records::MAX_RECORD_BYTES;
pub use requests::open_requests;
pub(crate) use requests::output_of;
pub use reuse::{PoolCounter, PoolStats, ReuseCounter, ReuseStats, prefix_reuse};
pub use row::{ChatTurn, RowPrompt, RowTurn, TraceRow};
pub use servegen::{Generated, ServeGen, ServeGenParams};
pub use shape::{LengthScale, Selected, fits, select, time_scale};
pub use spread::spread_arrivals;
pub use time::TimeUnit;
pub use tree::{Breaks, PrefixTree};
pub use validate::{Check, Validation, validate};
pub use write::{TargetFormat, TraceWriter};
