//! Reading the engine's own steps while it runs.

use pb_contract::StepRow;

use crate::endpoint::Endpoint;
use crate::error::LoadError;
use crate::follow::{RowItem, RowReader, RowsEnd, read_rows};
use crate::shell_wall::StopSignal;

/// Route of the stream.
const ROUTE: &str = "/steps/stream";

/// One line of the stream.
pub type StepItem = RowItem<StepRow>;

/// What was read.
pub type StepEnd = RowsEnd;

/// Reads steps from number `from` on and hands each to `on`, until `stop` is on and the stream
/// has been silent for 200 ms, or the server ends it.
///
/// # Errors
/// No connection, no such route, or a line that is no step.
pub async fn read_steps(
    endpoint: &Endpoint,
    from: u64,
    stop: StopSignal,
    on: impl FnMut(StepItem),
) -> Result<StepEnd, LoadError> {
    read_rows(endpoint, ROUTE, from, stop, on).await
}

/// A reader on a thread of its own.
#[derive(Debug)]
pub struct StepReader(RowReader);

impl StepReader {
    /// Starts reading from step `from` on; `on` runs on the reader's thread.
    ///
    /// # Errors
    /// The system gives no thread or no runtime.
    pub fn spawn(
        endpoint: &Endpoint,
        from: u64,
        on: impl FnMut(StepItem) + Send + 'static,
    ) -> Result<StepReader, LoadError> {
        RowReader::spawn(endpoint, ROUTE, from, on).map(StepReader)
    }

    /// Reads what is left and ends.
    ///
    /// # Errors
    /// Whatever went wrong while reading; rows handed out before remain good.
    pub fn stop(self) -> Result<StepEnd, LoadError> {
        self.0.stop()
    }
}
