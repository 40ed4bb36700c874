//! Matrix products by cuBLASLt.
//!
//! The library thinks in columns: our row-major `[m][n]` result is its `n x m` one, so it computes
//! `w a^T` with both matrices as they lie: `w` (its `k x n`, transposed) times `a` (its `k x m`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;

use cudarc::cublaslt::{result as lt, sys};

use crate::device::Product;
use crate::error::KernelError;

/// Scratch memory for algorithms that want some: what NVIDIA recommends for sm_90.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// `CUBLAS_OP_T` of cublas_api.h; the bindings leave the type out.
const TRANSPOSED: i32 = 1;

/// What an algorithm is chosen by: sizes, type, and whether the result is f32.
type Shape = ([usize; 3], &'static str, bool);

/// A chosen algorithm with its descriptions of the operands.
#[derive(Clone, Copy)]
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    a: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
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
        let shape = (product.mnk, product.elem, product.out_f32);
        let known = self.plans.borrow().get(&shape).copied();
        let plan = match known {
            Some(plan) => plan,
            None => {
                let plan = self.plan(shape)?;
                self.plans.borrow_mut().insert(shape, plan);
                plan
            }
        };
        let Some(plan) = plan else { return Ok(false) };
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the plan's descriptions live as long as the handle; addresses are those of
        // buffers of the described sizes, and the workspace is as large as the plan was told.
        unsafe {
            lt::matmul(
                self.handle,
                plan.product,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                product.w as *const c_void,
                plan.w,
                product.a as *const c_void,
                plan.a,
                product.out as *const c_void,
                plan.out,
                product.out as *mut c_void,
                plan.out,
                &plan.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream,
            )
        }
        .map_err(failed("cublasLtMatmul"))?;
        Ok(true)
    }

    fn plan(&self, ([m, n, k], elem, out_f32): Shape) -> Result<Option<Plan>, KernelError> {
        let low = match elem {
            "bf16" => sys::cudaDataType_t::CUDA_R_16BF,
            "f16" => sys::cudaDataType_t::CUDA_R_16F,
            _ => return Ok(None),
        };
        let single = sys::cudaDataType_t::CUDA_R_32F;
        let layout = |kind, rows: usize, columns: usize| {
            lt::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
                .map_err(failed("cublasLtMatrixLayoutCreate"))
        };
        let sums = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let product =
            lt::create_matmul_desc(sums, single).map_err(failed("cublasLtMatmulDescCreate"))?;
        let transposed = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        let (w, a) = (layout(low, k, n)?, layout(low, k, m)?);
        let out = layout(if out_f32 { single } else { low }, n, m)?;
        let preference =
            lt::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        let room =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: everything was made above and is alive; attributes are given by address and
        // size, as the library documents them (an i32 operation, a size_t number of bytes).
        let found = unsafe {
            lt::set_matmul_desc_attribute(
                product,
                transposed,
                std::ptr::from_ref(&TRANSPOSED).cast(),
                size_of::<i32>(),
            )
            .map_err(failed("cublasLtMatmulDescSetAttribute"))?;
            lt::set_matmul_pref_attribute(
                preference,
                room,
                std::ptr::from_ref(&WORKSPACE_BYTES).cast(),
                size_of::<usize>(),
            )
            .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))?;
            let found =
                lt::get_matmul_algo_heuristic(self.handle, product, w, a, out, out, preference);
            lt::destroy_matmul_pref(preference)
                .map_err(failed("cublasLtMatmulPreferenceDestroy"))?;
            found
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
            Err(e) => Err(failed("cublasLtMatmulAlgoGetHeuristic")(e)),
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by the library, used by nobody after this. Failures to free are nothing
        // to act on.
        unsafe {
            for plan in self.plans.get_mut().values().flatten() {
                let _ = lt::destroy_matmul_desc(plan.product);
                for layout in [plan.w, plan.a, plan.out] {
                    let _ = lt::destroy_matrix_layout(layout);
                }
            }
            let _ = lt::destroy_handle(self.handle);
        }
    }
}
