//! Run directories: what a run leaves behind, and how it is read again.
//!
//! Measuring, judging and reporting talk through files only, so that a finished run can be judged
//! again by a later judge and a killed run still counts for what it finished. Rows are appended
//! as they happen, one write each; aggregates are derived from them and never stored instead.
//!
//! ```text
//! run/
//!   manifest.json   what was measured, on what, with which inputs; `state` says whether it ended
//!   requests.csv    one row a request, failures included
//!   tokens.csv      one row a content event of a stream
//!   steps.csv       one row an engine step, when the server tells
//!   transfers.csv   one row a KV transfer between engines, when there were some
//!   tables.json     rows, size and digest of each table, when the writer finished
//!   ttft.hlog       HdrHistogram interval logs, derived from the rows; itl, event_gap, tpot and
//!                   e2e beside it
//!   *.json          whatever a later stage stores beside them (notes, verdict)
//! ```

pub mod atomic;
pub mod check;
pub mod error;
pub mod hlog;
mod lines;
pub mod metrics;
pub mod reader;
pub mod step;
pub mod stream;
pub mod table;
pub mod tables;
pub mod transfer;
pub mod visible;
pub mod writer;

pub use atomic::{write_atomic, write_json_atomic};
pub use check::{Fault, Findings};
pub use error::RecordError;
pub use reader::{RunData, RunReader};
pub use step::StepRecord;
pub use stream::{Record, RecordStream, read_rows};
pub use tables::{Receipts, TABLES_FILE, TableReceipt};
pub use transfer::{TransferRecord, read_transfers};
pub use visible::{visible, wrapped};
pub use writer::RunWriter;
