//! Matrix products by cuBLASLt.
//!
//! The library thinks in columns: our row-major `[m][n]` result is its `n x m` one, so it computes
//! `w a^T` with both matrices as they lie: `w` (its `k x n`, transposed) times `a` (its `k x m`).
//!
//! E4M3 has a factor for each row of both ("outer vector" scaling in the cuBLAS documentation):
//! cuBLAS 12.9 or later on compute capability 9.0, and on no other. Sums are moved to f32 from time
//! to time (fast accumulation stays off). Where the library does not know the mode, or has nothing
//! for the sizes, there is no plan, and our kernel computes. Where it must know the mode, a value
//! that it calls invalid is a mistake in our call, and an error.

mod owned;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;

use cudarc::cublaslt::{result as lt, sys};

use crate::device::{Product, VendorGemm};
use crate::error::KernelError;
use crate::source::SM_90A;
use owned::Owned;

/// Scratch memory for algorithms that want some: what NVIDIA recommends for sm_90.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// `CUBLAS_OP_T` of cublas_api.h; the bindings leave the type out.
const TRANSPOSED: i32 = 1;

/// The call that describes a product.
const SET: &str = "cublasLtMatmulDescSetAttribute";

/// What sizes and addresses of E4M3 must be multiples of, in elements and in bytes (the cuBLAS
/// documentation of `cublasLtMatmul`).
const E4M3_MULTIPLE: usize = 16;

/// The first version with a factor for each row, as `cublasLtGetVersion` numbers them: 12.9.0.
const ROW_SCALES_SINCE: usize = 120_900;

/// Why there is no plan.
const NO_ROW_SCALES: &str = "cuBLASLt scales rows from 12.9 on, on compute capability 9.0 alone";
const NO_ALGORITHM: &str = "cuBLASLt has no algorithm for these sizes";
const NOT_ALIGNED: &str = "cuBLASLt wants columns, terms and addresses in multiples of 16";
const NO_TYPE: &str = "cuBLASLt does not have the types";

/// What an algorithm is chosen by: sizes, type, and type of the result.
type Shape = ([usize; 3], &'static str, &'static str);

/// What the library says when asked for an algorithm.
type Answer = Result<sys::cublasLtMatmulHeuristicResult_t, lt::CublasError>;

type Description = Owned<sys::cublasLtMatmulDesc_t>;
type Layout = Owned<sys::cublasLtMatrixLayout_t>;

/// A chosen algorithm with its descriptions of the operands.
struct Plan {
    product: Description,
    w: Layout,
    a: Layout,
    out: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// A plan, or why there is none.
type Planned = Result<Plan, &'static str>;

/// The library and what was planned so far.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    /// Whether the documentation promises a factor for each row, here and with this version.
    must_scale_rows: bool,
    plans: RefCell<BTreeMap<Shape, Planned>>,
}

fn failed(call: &'static str) -> impl Fn(lt::CublasError) -> KernelError {
    move |e| KernelError::Vendor {
        call,
        problem: format!("{:?}", e.0),
    }
}

/// Whether a version of the library has a factor for each row on an architecture: the table of
/// scaling modes in the cuBLAS documentation names 9.0, and no later one.
fn scales_rows(architecture: &str, version: usize) -> bool {
    architecture == SM_90A && version >= ROW_SCALES_SINCE
}

/// What the library lacks if it says `e`, in words; `None` if that is a failure. `scaled`: a factor
/// for each row was asked for; `must_scale`: it must have that.
fn lacks(e: &lt::CublasError, scaled: bool, must_scale: bool) -> Option<&'static str> {
    use sys::cublasStatus_t as Status;
    let may_lack_scales = scaled && !must_scale;
    match e.0 {
        Status::CUBLAS_STATUS_NOT_SUPPORTED if may_lack_scales => Some(NO_ROW_SCALES),
        Status::CUBLAS_STATUS_NOT_SUPPORTED => Some(NO_ALGORITHM),
        // So libraries call a mode that is younger than they are.
        Status::CUBLAS_STATUS_INVALID_VALUE | Status::CUBLAS_STATUS_ARCH_MISMATCH
            if may_lack_scales =>
        {
            Some(NO_ROW_SCALES)
        }
        _ => None,
    }
}

/// A type, as kernels' names spell it.
fn kind(elem: &str) -> Option<sys::cudaDataType_t> {
    match elem {
        "bf16" => Some(sys::cudaDataType_t::CUDA_R_16BF),
        "f16" => Some(sys::cudaDataType_t::CUDA_R_16F),
        "f32" => Some(sys::cudaDataType_t::CUDA_R_32F),
        "e4m3" => Some(sys::cudaDataType_t::CUDA_R_8F_E4M3),
        _ => None,
    }
}

/// Whether the library may be asked for a product: of E4M3 it takes aligned sizes and addresses.
fn may_ask(product: &Product) -> bool {
    let Some(scales) = product.scales else {
        return product.elem != "e4m3";
    };
    let [_, n, k] = product.mnk;
    let [a_scales, w_scales] = scales;
    let addresses = [product.a, product.w, product.out, a_scales, w_scales];
    n.is_multiple_of(E4M3_MULTIPLE)
        && k.is_multiple_of(E4M3_MULTIPLE)
        && addresses
            .iter()
            .all(|a| a.is_multiple_of(E4M3_MULTIPLE as u64))
}

/// Sets an attribute of the description of a product.
///
/// # Safety
/// The description is alive, and `V` is what the library documents for the attribute.
unsafe fn set<V>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &V,
) -> Result<(), lt::CublasError> {
    let bytes = std::ptr::from_ref(value).cast();
    // SAFETY: as promised; the library copies the value during the call.
    unsafe { lt::set_matmul_desc_attribute(description, attribute, bytes, size_of::<V>()) }
}

/// Sets the addresses of the factors of rows of `a` and of `w`.
///
/// # Safety
/// The description is alive.
unsafe fn set_scales(
    description: sys::cublasLtMatmulDesc_t,
    [a_scales, w_scales]: [u64; 2],
) -> Result<(), KernelError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    // The library's left matrix is `w`.
    let pointers = [
        (Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales),
        (Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scales),
    ];
    for (attribute, address) in pointers {
        // SAFETY: as promised; the attribute is an address.
        unsafe { set(description, attribute, &address) }.map_err(failed(SET))?;
    }
    Ok(())
}

/// Asks for a factor for each row of both matrices.
///
/// # Safety
/// The description is alive.
unsafe fn scale_rows(description: sys::cublasLtMatmulDesc_t) -> Result<(), lt::CublasError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let outer = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    for attribute in [
        Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
        Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
    ] {
        // SAFETY: as promised; the attribute is a number of 32 bits.
        unsafe { set(description, attribute, &outer)? };
    }
    Ok(())
}

impl Blas {
    /// The library, if it is installed; a context of a GPU of the architecture must be current.
    /// `workspace` is the address of [`WORKSPACE_BYTES`] bytes.
    pub(super) fn new(workspace: u64, architecture: &str) -> Result<Option<Self>, KernelError> {
        // SAFETY: loading a library runs its initialisers, which are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        // SAFETY: the library is there, and the call only gives a number.
        let version = unsafe { sys::cublasLtGetVersion() };
        Ok(Some(Blas {
            handle: lt::create_handle().map_err(failed("cublasLtCreate"))?,
            workspace,
            must_scale_rows: scales_rows(architecture, version),
            plans: RefCell::default(),
        }))
    }

    /// Computes on `stream`, if there is an algorithm for the shape.
    pub(super) fn run(
        &self,
        product: &Product,
        stream: sys::cudaStream_t,
    ) -> Result<VendorGemm, KernelError> {
        if !may_ask(product) {
            return Ok(VendorGemm::Lacks(NOT_ALIGNED));
        }
        let shape = (product.mnk, product.elem, product.out_elem);
        let mut plans = self.plans.borrow_mut();
        let planned = match plans.entry(shape) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.plan(product)?),
        };
        let plan = match *planned {
            Ok(ref plan) => plan,
            Err(why) => return Ok(VendorGemm::Lacks(why)),
        };
        if let Some(scales) = product.scales {
            // The plan is of all products of its shape, the addresses are of this one.
            // SAFETY: the plan's descriptions live as long as the plan.
            unsafe { set_scales(plan.product.it, scales)? };
        }
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the plan's descriptions live as long as the plan; addresses are those of
        // buffers of the described sizes, and the workspace is as large as the plan was told.
        unsafe {
            lt::matmul(
                self.handle,
                plan.product.it,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                product.w as *const c_void,
                plan.w.it,
                product.a as *const c_void,
                plan.a.it,
                product.out as *const c_void,
                plan.out.it,
                product.out as *mut c_void,
                plan.out.it,
                &plan.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream,
            )
        }
        .map_err(failed("cublasLtMatmul"))?;
        Ok(VendorGemm::Computed)
    }

    fn plan(&self, of: &Product) -> Result<Planned, KernelError> {
        let [m, n, k] = of.mnk;
        let (Some(low), Some(result)) = (kind(of.elem), kind(of.out_elem)) else {
            return Ok(Err(NO_TYPE));
        };
        let layout = |kind, rows: usize, columns: usize| {
            let made = lt::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64);
            let call = "cublasLtMatrixLayoutCreate";
            Layout::new(made, call, lt::destroy_matrix_layout)
        };
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let made = lt::create_matmul_desc(sums, sys::cudaDataType_t::CUDA_R_32F);
        let call = "cublasLtMatmulDescCreate";
        let product = Description::new(made, call, lt::destroy_matmul_desc)?;
        let transposed = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let (w, a, out) = (
            layout(low, k, n)?,
            layout(low, k, m)?,
            layout(result, n, m)?,
        );
        let scaled = of.scales.is_some();
        // SAFETY: everything was made above and is alive; the operation is an i32.
        let found = unsafe {
            set(product.it, transposed, &TRANSPOSED).map_err(failed(SET))?;
            if let Some(scales) = of.scales {
                if let Err(e) = scale_rows(product.it) {
                    return self.without_plan(SET, e, scaled);
                }
                // A mode without addresses is refused.
                set_scales(product.it, scales)?;
            }
            self.algorithm(product.it, [w.it, a.it, out.it], scaled)?
        };
        match found {
            Ok(found) => Ok(Ok(Plan {
                product,
                w,
                a,
                out,
                algorithm: found.algo,
            })),
            Err(e) => self.without_plan("cublasLtMatmulAlgoGetHeuristic", e, scaled),
        }
    }

    /// What comes of a refused call: something that the library may lack, or a failure.
    fn without_plan(
        &self,
        call: &'static str,
        e: lt::CublasError,
        scaled: bool,
    ) -> Result<Planned, KernelError> {
        match lacks(&e, scaled, self.must_scale_rows) {
            Some(why) => Ok(Err(why)),
            None => Err(failed(call)(e)),
        }
    }

    /// The library's choice for `[w, a, out]`, or its refusal. With `scaled`, addresses may be any
    /// multiples of [`E4M3_MULTIPLE`]; otherwise they are as the library takes them to be.
    ///
    /// # Safety
    /// All descriptions are alive.
    unsafe fn algorithm(
        &self,
        product: sys::cublasLtMatmulDesc_t,
        [w, a, out]: [sys::cublasLtMatrixLayout_t; 3],
        scaled: bool,
    ) -> Result<Answer, KernelError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let made = lt::create_matmul_pref();
        let call = "cublasLtMatmulPreferenceCreate";
        let preference = Owned::new(made, call, lt::destroy_matmul_pref)?;
        let room = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let alignments = [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        let refused = "cublasLtMatmulPreferenceSetAttribute";
        // SAFETY: the preference was made above, the others are alive as promised; attributes are
        // given by address and size, as the library documents them (a size_t, numbers of 32 bits).
        unsafe {
            lt::set_matmul_pref_attribute(
                preference.it,
                room,
                std::ptr::from_ref(&WORKSPACE_BYTES).cast(),
                size_of::<usize>(),
            )
            .map_err(failed(refused))?;
            let least = E4M3_MULTIPLE as u32;
            for attribute in alignments.into_iter().filter(|_| scaled) {
                let bytes = std::ptr::from_ref(&least).cast();
                lt::set_matmul_pref_attribute(preference.it, attribute, bytes, size_of::<u32>())
                    .map_err(failed(refused))?;
            }
            let how = preference.it;
            Ok(lt::get_matmul_algo_heuristic(
                self.handle,
                product,
                w,
                a,
                out,
                out,
                how,
            ))
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.get_mut().clear();
        // SAFETY: made by the library, used by nobody after this. A failure to free is nothing to
        // act on.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::{NO_ALGORITHM, NO_ROW_SCALES, failed, kind, lacks, lt, may_ask, scales_rows, sys};
    use crate::device::Product;
    use crate::error::KernelError;

    #[test]
    fn rows_are_scaled_on_9_0_alone_from_12_9_on() {
        for (architecture, version, scales) in [
            ("sm_90a", 120_900, true),
            ("sm_90a", 130_401, true),
            ("sm_90a", 120_804, false),
            ("sm_89", 130_401, false),
            ("sm_100", 130_401, false),
            ("sm_120", 130_401, false),
        ] {
            assert_eq!(scales_rows(architecture, version), scales, "{architecture}");
        }
    }

    #[test]
    fn an_invalid_value_is_a_failure_unless_the_library_may_not_know_the_mode() {
        use sys::cublasStatus_t as Status;
        let (invalid, other) = (
            Status::CUBLAS_STATUS_INVALID_VALUE,
            Status::CUBLAS_STATUS_NOT_SUPPORTED,
        );
        let broken = Status::CUBLAS_STATUS_INTERNAL_ERROR;
        for (status, scaled, must_scale, why) in [
            (invalid, true, true, None),
            (invalid, true, false, Some(NO_ROW_SCALES)),
            (invalid, false, true, None),
            (invalid, false, false, None),
            (other, true, true, Some(NO_ALGORITHM)),
            (other, true, false, Some(NO_ROW_SCALES)),
            (other, false, false, Some(NO_ALGORITHM)),
            (broken, true, false, None),
            (broken, true, true, None),
        ] {
            let said = lacks(&lt::CublasError(status), scaled, must_scale);
            assert_eq!(said, why, "{status:?} {scaled} {must_scale}");
        }
        let told = failed("cublasLtMatmul")(lt::CublasError(invalid));
        assert!(matches!(told, KernelError::Vendor { .. }), "{told}");
        assert_eq!(
            told.to_string(),
            "cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE"
        );
    }

    #[test]
    fn of_e4m3_only_aligned_products_are_asked_for() {
        let good = Product {
            a: 256,
            w: 512,
            out: 1024,
            mnk: [3, 64, 32],
            elem: "e4m3",
            out_elem: "bf16",
            scales: Some([2048, 4096]),
        };
        assert!(may_ask(&good), "rows may be any number");
        for wrong in [
            Product { a: 264, ..good },
            Product { w: 520, ..good },
            Product { out: 1026, ..good },
            Product {
                scales: Some([2052, 4096]),
                ..good
            },
            Product {
                scales: Some([2048, 4100]),
                ..good
            },
            Product {
                mnk: [3, 66, 32],
                ..good
            },
            Product {
                mnk: [3, 64, 40],
                ..good
            },
            Product {
                scales: None,
                ..good
            },
        ] {
            assert!(!may_ask(&wrong), "{wrong:?}");
        }
        let plain = Product {
            mnk: [3, 66, 40],
            elem: "bf16",
            scales: None,
            ..good
        };
        assert!(may_ask(&plain));
        assert!(kind("e5m2").is_none(), "no type is taken for another");
    }
}
