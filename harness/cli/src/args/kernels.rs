//! The command line of `kernels`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::positive;

/// Arguments of `kernels`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench kernels                         the CPU's, validated and timed
  prefillbench kernels --device cuda --csv kernels.csv
  prefillbench kernels --torch python3         and attention in turns with PyTorch's
  prefillbench kernels --device emulated --forward
  prefillbench kernels --device emulated --every-shape --csv prefill-shapes.csv
  prefillbench kernels --device emulated --forward --forward-only --whole-only --prompts 1 \\
    --model smollm2-135m --prompt-len 128

Exit codes: 0 all right, 1 a kernel or a forward pass is wrong, 2 bad usage or no such device, 3
PyTorch's attention gave something else, or too few rows of a forward pass could be decided.")]
pub(crate) struct KernelsArgs {
    /// Where they run.
    #[arg(long, value_enum, default_value_t = KernelDevice::Cpu)]
    pub(crate) device: KernelDevice,
    /// Write every result as a row of this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Long prefixes and large products too: on `cuda` always; on `emulated` it takes minutes.
    #[arg(long)]
    pub(crate) full: bool,
    /// Attention at all 1440 shapes of prefill, 288 with split keys, 270 of decode and, where the
    /// device has it, 960 of prefill by wgmma, and nothing else: on `cuda`, and on `emulated`,
    /// where it takes minutes. Each in three orders of threads, whose bits must agree (on `cuda`:
    /// three runs).
    #[arg(long, conflicts_with_all = ["full", "forward", "skip_timing"])]
    pub(crate) every_shape: bool,
    /// Leave out the times of the kernels.
    #[arg(long)]
    pub(crate) skip_timing: bool,
    /// Also time attention in turns with PyTorch's, under this Python; without PyTorch in it, a
    /// line says so. On `cpu` and `cuda`.
    #[arg(long, value_name = "PYTHON", conflicts_with = "every_shape")]
    pub(crate) torch: Option<PathBuf>,
    /// Compute threads of `cpu`, and of `emulated` with --every-shape; default: all cores.
    #[arg(long, value_parser = super::threads)]
    pub(crate) threads: Option<usize>,
    /// Also compare forward passes of a model in chunks with whole ones, and with f64.
    #[arg(long)]
    pub(crate) forward: bool,
    /// Model of `--forward`: `synthetic`, `smollm2-135m`, a GGUF file or a Hugging Face directory.
    #[arg(long, default_value = "synthetic", requires = "forward")]
    pub(crate) model: String,
    /// Tokens of its longest prompt.
    #[arg(long, default_value = "70", value_parser = positive, requires = "forward")]
    pub(crate) prompt_len: usize,
    /// Prompts: of that length, of half of it, of 5 tokens.
    #[arg(long, default_value = "3", value_parser = prompts, requires = "forward")]
    pub(crate) prompts: usize,
    /// Leave out prompts in chunks: an emulated device takes minutes for a step of a real model.
    #[arg(long, requires = "forward")]
    pub(crate) whole_only: bool,
    /// Leave out the kernels alone.
    #[arg(long, requires = "forward")]
    pub(crate) forward_only: bool,
    /// Plant a fault in the kernels of `cuda` and `emulated`, to see it found: PB_FAULT_MASK,
    /// PB_FAULT_HEADS, PB_FAULT_BASE, PB_FAULT_GEMM_TAIL, PB_FAULT_BARRIER,
    /// PB_FAULT_QUANTIZE_MAX, PB_FAULT_E4M3_SCALE.
    #[arg(long, value_name = "NAME", value_parser = fault)]
    pub(crate) plant: Option<String>,
}

/// Devices that have kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelDevice {
    /// The CPU's own kernels.
    Cpu,
    /// The CUDA kernels on an NVIDIA GPU.
    Cuda,
    /// The CUDA kernels, executed thread by thread on the host: right, and slow.
    Emulated,
}

/// Parses a number of prompts.
fn prompts(text: &str) -> Result<usize, String> {
    match positive(text)? {
        n if n <= 3 => Ok(n),
        _ => Err("must be 1, 2 or 3".to_owned()),
    }
}

/// Parses the name of a planted fault.
fn fault(text: &str) -> Result<String, String> {
    let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    match text.strip_prefix("PB_FAULT_") {
        Some(rest) if !rest.is_empty() && rest.chars().all(word) => Ok(text.to_owned()),
        _ => Err("must be the name of a planted fault, as PB_FAULT_MASK".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::fault;

    #[test]
    fn every_fault_that_the_help_names_is_taken() {
        let mut command = crate::args::Cli::command();
        let verb = command.find_subcommand_mut("kernels").unwrap();
        let help = verb.render_long_help().to_string();
        let named: Vec<&str> = help
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| word.starts_with("PB_FAULT_"))
            .collect();
        assert!(named.len() >= 7, "{named:?}");
        for name in named {
            assert_eq!(fault(name).as_deref(), Ok(name));
        }
        for wrong in ["PB_FAULT_", "PB_FAULT_mask", "MASK", "PB_FAULT_A=1"] {
            assert!(fault(wrong).is_err(), "{wrong}");
        }
    }
}
