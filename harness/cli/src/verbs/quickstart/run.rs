//! The run directory of a quickstart, while it is being written.

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::{Context, Result};
use pb_contract::manifest::{ArmReceipt, ModelReceipt, RUN_SCHEMA_VERSION, RunState};
use pb_contract::{RunManifest, StepRow};
use pb_judge::run::RunNotes;
use pb_load::Record;
use pb_record::RunWriter;

use crate::machine;

/// Name of the file with what the runner proved.
pub(crate) const NOTES_FILE: &str = "notes.json";

/// Something to be written as soon as it happens.
pub(crate) enum Item {
    /// A request that ended.
    Request(Box<Record>),
    /// An engine step.
    Step(Box<StepRow>),
}

/// A run directory with its notes.
pub(crate) struct Run {
    writer: RunWriter,
    /// What the runner proved so far.
    pub(crate) notes: RunNotes,
}

impl Run {
    /// Creates the run directory.
    pub(crate) fn create(
        dir: &Path,
        seed: u64,
        model: ModelReceipt,
        workload: serde_json::Value,
    ) -> Result<Self> {
        let manifest = RunManifest {
            schema_version: RUN_SCHEMA_VERSION,
            kind: "quickstart".into(),
            state: RunState::Running,
            created: jiff::Timestamp::now()
                .strftime("%Y-%m-%dT%H:%M:%SZ")
                .to_string(),
            command: std::env::args().collect(),
            tool: machine::tool(),
            machine: machine::machine(),
            model,
            seed,
            schedule_sha256: Default::default(),
            arms: Vec::new(),
            order: Vec::new(),
            workload,
        };
        let writer = RunWriter::create(dir, manifest)
            .with_context(|| format!("cannot create the run directory {}", dir.display()))?;
        Ok(Run {
            writer,
            notes: RunNotes::default(),
        })
    }

    /// The run directory.
    pub(crate) fn dir(&self) -> PathBuf {
        self.writer.dir().to_path_buf()
    }

    /// Records the workload as it was resolved in the end.
    pub(crate) fn set_workload(&mut self, workload: serde_json::Value) -> Result<()> {
        self.writer.update_manifest(|m| m.workload = workload)?;
        Ok(())
    }

    /// Adds an arm to the manifest, once.
    pub(crate) fn add_arm(&mut self, arm: ArmReceipt) -> Result<()> {
        if self
            .writer
            .manifest()
            .arms
            .iter()
            .any(|known| known.name == arm.name)
        {
            return Ok(());
        }
        self.writer.update_manifest(|m| m.arms.push(arm))?;
        Ok(())
    }

    /// Records that `arm` runs `block` next, under a schedule with this hash.
    pub(crate) fn begin_cell(&mut self, arm: &str, block: u32, schedule: String) -> Result<()> {
        self.writer.update_manifest(|m| {
            let cell = format!("{block}:{arm}");
            m.order.push(cell.clone());
            m.schedule_sha256.insert(cell, schedule);
        })?;
        Ok(())
    }

    /// Writes everything that arrives until the senders are gone.
    pub(crate) fn write_all(
        &mut self,
        arm: &str,
        block: u32,
        items: mpsc::Receiver<Item>,
    ) -> Result<()> {
        for item in items {
            match item {
                Item::Request(record) => self.writer.request(&record.row, &record.tokens)?,
                Item::Step(row) => self.writer.steps(arm, block, &[*row])?,
            }
        }
        Ok(())
    }

    /// Writes the notes as they stand.
    pub(crate) fn save_notes(&mut self) -> Result<()> {
        self.writer.write_json(NOTES_FILE, &self.notes)?;
        Ok(())
    }

    /// Marks the run as finished.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.save_notes()?;
        self.writer.finish(RunState::Complete)?;
        Ok(())
    }
}
