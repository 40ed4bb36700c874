//! Matrix products by cuBLASLt.
//!
//! The library thinks in columns: our row-major `[m][n]` result is its `n x m` one, so it computes
//! `w a^T` with both matrices as they lie: `w` (its `k x n`, transposed) times `a` (its `k x m`).
//!
//! E4M3 has a factor for each row of both ("outer vector" scaling in the cuBLAS documentation):
//! cuBLAS 12.9 or later on compute capability 9.0. Sums are moved to f32 from time to time (fast
//! accumulation stays off). Where the library does not know the mode, or has nothing for the
//! sizes, there is no plan, and our kernel computes.

mod owned;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;

use cudarc::cublaslt::{result as lt, sys};

use crate::device::Product;
use crate::error::KernelError;
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

/// The library and the plans made so far; `None` for a shape that it has no algorithm for.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    plans: RefCell<BTreeMap<Shape, Option<Plan>>>,
}

fn failed(call: &str) -> impl Fn(lt::CublasError) -> KernelError + '_ {
    move |e| KernelError::Device {
        call: call.to_owned(),
        problem: e.to_string(),
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

/// Asks for a factor for each row of both matrices; `false` from a library that does not know it.
///
/// # Safety
/// The description is alive.
unsafe fn scale_rows(description: sys::cublasLtMatmulDesc_t) -> Result<bool, KernelError> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let outer = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    for attribute in [
        Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
        Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
    ] {
        // SAFETY: as promised; the attribute is a number of 32 bits.
        match unsafe { set(description, attribute, &outer) } {
            Err(e) if is_refusal(&e) => return Ok(false),
            answer => answer.map_err(failed(SET))?,
        }
    }
    Ok(true)
}

/// Whether the library says that it does not have what was asked for: libraries older than a mode
/// call it an invalid value.
fn is_refusal(e: &lt::CublasError) -> bool {
    use sys::cublasStatus_t as Status;
    matches!(
        e.0,
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE
    )
}

impl Blas {
    /// The library, if it is installed; a context must be current. `workspace` is the address of
    /// [`WORKSPACE_BYTES`] bytes.
    pub(super) fn new(workspace: u64) -> Result<Option<Self>, KernelError> {
        // SAFETY: loading a library runs its initialisers, which are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        Ok(Some(Blas {
            handle: lt::create_handle().map_err(failed("cublasLtCreate"))?,
            workspace,
            plans: RefCell::default(),
        }))
    }

    /// Computes on `stream`; `false` when there is no algorithm for the shape.
    pub(super) fn run(
        &self,
        product: &Product,
        stream: sys::cudaStream_t,
    ) -> Result<bool, KernelError> {
        if !may_ask(product) {
            return Ok(false);
        }
        let shape = (product.mnk, product.elem, product.out_elem);
        let mut plans = self.plans.borrow_mut();
        let plan = match plans.entry(shape) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.plan(product)?),
        };
        let Some(plan) = plan else { return Ok(false) };
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
        Ok(true)
    }

    fn plan(&self, of: &Product) -> Result<Option<Plan>, KernelError> {
        let [m, n, k] = of.mnk;
        let (Some(low), Some(result)) = (kind(of.elem), kind(of.out_elem)) else {
            return Ok(None);
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
        // SAFETY: everything was made above and is alive; the operation is an i32.
        let found = unsafe {
            set(product.it, transposed, &TRANSPOSED).map_err(failed(SET))?;
            if let Some(scales) = of.scales {
                if !scale_rows(product.it)? {
                    return Ok(None);
                }
                // A mode without addresses is refused.
                set_scales(product.it, scales)?;
            }
            self.algorithm(product.it, [w.it, a.it, out.it], of.scales.is_some())?
        };
        match found {
            Ok(found) => Ok(Some(Plan {
                product,
                w,
                a,
                out,
                algorithm: found.algo,
            })),
            Err(lt::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Err(e) if of.scales.is_some() && is_refusal(&e) => Ok(None),
            Err(e) => Err(failed("cublasLtMatmulAlgoGetHeuristic")(e)),
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
    use super::{kind, may_ask};
    use crate::device::Product;

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
