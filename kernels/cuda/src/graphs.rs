//! Launches recorded once and run many times.

use crate::error::KernelError;

/// A recorded sequence of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph(pub(crate) usize);

/// Graphs of a device. They last until [`Graphs::forget_graphs`] or as long as it does.
pub trait Graphs {
    /// Records the launches of `work` without running them. Their parameters are those of now; what
    /// they read is what lies at these addresses when the graph runs. Nothing else may be done
    /// meanwhile: no memory, no copies.
    ///
    /// # Errors
    /// Those of `work`, and [`KernelError`] when it does something that cannot be recorded.
    fn capture(
        &self,
        work: &mut dyn FnMut() -> Result<(), KernelError>,
    ) -> Result<Graph, KernelError>;

    /// Runs the launches of `graph` in the current lane.
    ///
    /// # Errors
    /// [`KernelError`] when the device fails or has forgotten the graph.
    fn replay(&self, graph: Graph) -> Result<(), KernelError>;

    /// Gives up all graphs, which must not be running.
    ///
    /// # Errors
    /// [`KernelError`] when the device fails.
    fn forget_graphs(&self) -> Result<(), KernelError>;
}
