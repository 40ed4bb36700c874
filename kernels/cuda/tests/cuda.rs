//! The device that may not be there: it says so, and what can be done without it is.

use pb_kernels_cuda::{CudaDevice, CudaOptions, KernelError, compile_all};

fn options() -> CudaOptions {
    CudaOptions {
        ordinal: 0,
        cache: std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubin"),
        defines: Vec::new(),
    }
}

#[test]
fn a_missing_gpu_is_an_error_that_says_what_is_missing() {
    match CudaDevice::open(&options()) {
        Ok(device) => eprintln!(
            "skipped: there is a GPU: {}",
            pb_kernels_cuda::Device::name(&device)
        ),
        Err(e @ KernelError::NoDevice { .. }) => {
            let text = e.to_string();
            assert!(text.starts_with("no CUDA device: "), "{text}");
        }
        Err(e) => panic!("not the error of a missing device: {e}"),
    }
    let none = CudaOptions {
        ordinal: 999,
        ..options()
    };
    let refused = CudaDevice::open(&none)
        .err()
        .expect("no machine has a thousand GPUs");
    assert!(matches!(refused, KernelError::NoDevice { .. }), "{refused}");
}

/// The compiler needs no GPU: where NVRTC is, every kernel is built, kept, and taken from there.
#[test]
fn kernels_are_compiled_once_and_kept_by_what_they_depend_on() {
    let cache = tempfile::tempdir().unwrap();
    let build =
        |architecture: &str, defines: &[String]| compile_all(architecture, cache.path(), defines);
    let (files, compiled) = match build("sm_90", &[]) {
        Ok(counts) => counts,
        Err(e @ KernelError::NoDevice { .. }) => {
            assert!(e.to_string().contains("NVRTC"), "{e}");
            eprintln!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!((files, compiled), (13, 13));
    assert_eq!(build("sm_90", &[]).unwrap(), (13, 0), "kept");
    let fault = ["PB_FAULT_MASK".to_owned()];
    assert_eq!(
        build("sm_90", &fault).unwrap(),
        (13, 1),
        "prefill.cu alone knows it"
    );
    assert_eq!(
        build("sm_80", &[]).unwrap(),
        (13, 13),
        "another architecture"
    );
    assert_eq!(
        build("sm_90a", &[]).unwrap(),
        (14, 14),
        "wgmma has a file of its own"
    );
    let refused = build("sm_1", &[]).unwrap_err().to_string();
    assert!(refused.contains("--gpu-architecture"), "{refused}");
}
