//! NIXL's C interface, loaded at run time: the only `unsafe` of this crate.
//!
//! The functions are those of `wrapper.h` in NIXL's Rust bindings. The library is never unloaded:
//! it starts threads and has destructors of its own.
//!
//! Memory that NIXL reads and writes is an [`Arena`]: bytes behind a pointer, of which no Rust
//! reference is ever made, because a peer may read, and NIXL write, at any time.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

use libloading::Library;

use super::TransportError;

type Handle = *mut c_void;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 1;
const HOST_MEMORY: c_int = 0;
const READ: c_int = 0;
/// What makes it load.
const INSTALL: &str = "install NIXL with `pip install --no-deps nixl-cu13`, name the \
     libnixl_capi.so in it, and set NIXL_PLUGIN_DIR to the folder `plugins` beside it";
/// How long one look at a transfer's state is apart from the next.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Looks without a pause in between.
const HASTY_LOOKS: u32 = 200;

/// Lets this process end without destructors of libraries: those of the wheel's own libnl write to
/// memory that is gone by then, and every process that had loaded NIXL would end by SIGSEGV.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn skip_destructors() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    unsafe extern "C" {
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }
    extern "C" fn leave(status: c_int, _: *mut c_void) {
        // SAFETY: the process ends; what Rust has buffered was flushed before `exit` was called.
        unsafe { _exit(status) }
    }
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this program, which is never unloaded, and needs no
        // argument. If there is no room for it, the process ends as it would have.
        unsafe { on_exit(leave, null_mut()) };
    });
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn skip_destructors() {}

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions that are used.
        #[derive(Clone, Copy)]
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Api {
            fn find(library: &Library) -> Result<Api, libloading::Error> {
                Ok(Api {
                    $($name: {
                        let symbol = concat!("nixl_capi_", stringify!($name), "\0");
                        // SAFETY: the type is that of the declaration in NIXL's `wrapper.h`.
                        unsafe { *library.get(symbol.as_bytes())? }
                    },)*
                })
            }
        }
    };
}

functions! {
    create_agent(*const c_char, *mut Handle);
    destroy_agent(Handle);
    get_plugin_params(Handle, *const c_char, *mut Handle, *mut Handle);
    destroy_mem_list(Handle);
    destroy_params(Handle);
    create_backend(Handle, *const c_char, Handle, *mut Handle);
    destroy_backend(Handle);
    create_opt_args(*mut Handle);
    destroy_opt_args(Handle);
    opt_args_add_backend(Handle, Handle);
    // Older versions take a third argument, whether the list is sorted; newer ones ignore it.
    create_reg_dlist(c_int, *mut Handle, bool);
    reg_dlist_add_desc(Handle, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist(Handle);
    register_mem(Handle, Handle, Handle);
    deregister_mem(Handle, Handle, Handle);
    get_local_md(Handle, *mut *mut c_void, *mut usize);
    load_remote_md(Handle, *const c_void, usize, *mut *mut c_char);
    invalidate_remote_md(Handle, *const c_char);
    create_xfer_dlist(c_int, *mut Handle, bool);
    xfer_dlist_add_desc(Handle, usize, usize, u64);
    destroy_xfer_dlist(Handle);
    create_xfer_req(Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle);
    post_xfer_req(Handle, Handle, Handle);
    get_xfer_status(Handle, Handle);
    release_xfer_req(Handle, Handle);
    destroy_xfer_req(Handle);
}

unsafe extern "C" {
    /// Of the C library, for what NIXL allocated with `malloc`.
    fn free(pointer: *mut c_void);
}

fn done(doing: &'static str, status: c_int) -> Result<(), TransportError> {
    match status {
        SUCCESS => Ok(()),
        status => Err(TransportError::Nixl { doing, status }),
    }
}

/// Bytes that NIXL may read and write.
pub(super) struct Arena {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pointer is the arena's own, and access to the bytes is by copy and raw pointer; a
// race with a peer can make bytes wrong, which checksums find, and nothing else.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// `bytes` zero bytes, at least one.
    pub(super) fn new(bytes: usize) -> Result<Arena, TransportError> {
        let layout = Layout::from_size_align(bytes.max(1), 4096);
        let layout = layout.map_err(|_| TransportError::Setup {
            problem: format!("{bytes} bytes of slots"),
        })?;
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(Arena { start, layout })
    }

    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    fn check(&self, at: usize, bytes: usize) {
        let end = at.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.layout.size()),
            "{at} + {bytes}"
        );
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// Beyond its end.
    pub(super) fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        // SAFETY: checked to lie within; `from` is a slice of other memory.
        unsafe {
            self.start
                .as_ptr()
                .add(at)
                .copy_from_nonoverlapping(from.as_ptr(), from.len())
        }
    }

    /// Copies the bytes from `at` on to `out`.
    ///
    /// # Panics
    /// Beyond its end.
    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        self.check(at, out.len());
        // SAFETY: checked to lie within; `out` is a slice of other memory.
        unsafe {
            self.start
                .as_ptr()
                .add(at)
                .copy_to_nonoverlapping(out.as_mut_ptr(), out.len())
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A NIXL agent with the UCX backend, one registered arena and one peer.
pub(super) struct Agent {
    api: Api,
    agent: Handle,
    memories: Handle,
    params: Handle,
    backend: Handle,
    options: Handle,
    registered: Handle,
    peer: Option<CString>,
    arena: Arc<Arena>,
}

// SAFETY: the handles are used by one thread at a time, whichever has the agent; NIXL's own threads
// synchronise with it by themselves.
unsafe impl Send for Agent {}

impl Agent {
    /// Loads the library, if need be, and makes an agent whose arena peers can read.
    pub(super) fn new(
        library: &Path,
        name: &str,
        arena: Arc<Arena>,
    ) -> Result<Agent, TransportError> {
        let missing = |error: libloading::Error| TransportError::Missing {
            library: library.to_owned(),
            // What the loader itself said, if it did.
            problem: std::error::Error::source(&error)
                .unwrap_or(&error)
                .to_string(),
            install: INSTALL,
        };
        // SAFETY: loading runs the library's initialisers; it is the user who names the library.
        let loaded = unsafe { Library::new(library) }.map_err(missing)?;
        // From here on it has destructors that must not run, neither when the process ends nor by
        // unloading it: a library without one of the functions is refused below, and stays.
        skip_destructors();
        let loaded = ManuallyDrop::new(loaded);
        let api = Api::find(&loaded).map_err(missing)?;
        let mut agent = Agent {
            api,
            agent: null_mut(),
            memories: null_mut(),
            params: null_mut(),
            backend: null_mut(),
            options: null_mut(),
            registered: null_mut(),
            peer: None,
            arena,
        };
        agent.set_up(name)?;
        Ok(agent)
    }

    fn set_up(&mut self, name: &str) -> Result<(), TransportError> {
        let name = CString::new(name).unwrap_or_default();
        let (api, ucx) = (self.api, c"UCX".as_ptr());
        let (start, bytes) = (self.arena.address(), self.arena.layout.size());
        // SAFETY: pointers to handles are to this struct's, strings end with zero and outlive their
        // calls, and handles are those that NIXL made just before. The arena outlives its
        // registration, which is undone when this struct is dropped.
        unsafe {
            done(
                "making an agent",
                (api.create_agent)(name.as_ptr(), &mut self.agent),
            )?;
            let found =
                (api.get_plugin_params)(self.agent, ucx, &mut self.memories, &mut self.params);
            done(
                "finding the plugin UCX; is NIXL_PLUGIN_DIR its folder?",
                found,
            )?;
            let made = (api.create_backend)(self.agent, ucx, self.params, &mut self.backend);
            done("starting the plugin UCX", made)?;
            done("making options", (api.create_opt_args)(&mut self.options))?;
            let added = (api.opt_args_add_backend)(self.options, self.backend);
            done("choosing the plugin UCX", added)?;
            let made = (api.create_reg_dlist)(HOST_MEMORY, &mut self.registered, false);
            done("making a list of memory", made)?;
            let nothing = std::ptr::null();
            let added = (api.reg_dlist_add_desc)(self.registered, start, bytes, 0, nothing, 0);
            done("listing memory", added)?;
            let done_so = (api.register_mem)(self.agent, self.registered, self.options);
            if done_so != SUCCESS {
                (api.destroy_reg_dlist)(self.registered);
                self.registered = null_mut();
            }
            done("registering memory", done_so)
        }
    }

    /// What a peer must know to read the arena.
    pub(super) fn metadata(&self) -> Result<Vec<u8>, TransportError> {
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: on success `data` is `len` bytes from `malloc`, copied and freed once.
        unsafe {
            let got = (self.api.get_local_md)(self.agent, &mut data, &mut len);
            done("asking for metadata", got)?;
            let copy = std::slice::from_raw_parts(data.cast::<u8>(), len).to_vec();
            free(data);
            Ok(copy)
        }
    }

    /// Learns of the peer.
    pub(super) fn meet(&mut self, metadata: &[u8]) -> Result<(), TransportError> {
        let mut name = null_mut();
        // SAFETY: NIXL copies the metadata; on success `name` is a string from `strdup`, copied and
        // freed once.
        unsafe {
            let (data, len) = (metadata.as_ptr().cast(), metadata.len());
            let met = (self.api.load_remote_md)(self.agent, data, len, &mut name);
            done("loading the peer's metadata", met)?;
            self.peer = Some(CStr::from_ptr(name).to_owned());
            free(name.cast());
        }
        Ok(())
    }

    /// Reads `bytes` bytes at an address of the peer to the arena from `to` on. `patience` is how
    /// long that may take, at least.
    ///
    /// # Panics
    /// When they do not fit the arena, or no peer was met.
    pub(super) fn fetch(
        &mut self,
        from: usize,
        to: usize,
        bytes: usize,
        patience: Duration,
    ) -> Result<(), TransportError> {
        self.arena.check(to, bytes);
        let here = self.list(self.arena.address() + to, bytes)?;
        let there = self.list(from, bytes)?;
        let peer = self.peer.as_ref().expect("a peer was met");
        let mut request = null_mut();
        // SAFETY: both lists were made by NIXL and live until the end of this function; the range
        // of the arena was checked, that of the peer is checked by NIXL against its metadata.
        let made = unsafe {
            let name = peer.as_ptr();
            let make = self.api.create_xfer_req;
            make(
                self.agent,
                READ,
                here.0,
                there.0,
                name,
                &mut request,
                self.options,
            )
        };
        done("preparing a read", made)?;
        let fetched = self.wait(request, patience);
        if fetched.is_err() {
            // It may be written for as long as NIXL likes: it must not be used for anything else.
            std::mem::forget(Arc::clone(&self.arena));
        }
        // SAFETY: made above, and given back once.
        unsafe {
            (self.api.release_xfer_req)(self.agent, request);
            (self.api.destroy_xfer_req)(request);
        }
        fetched
    }

    fn wait(&self, request: Handle, patience: Duration) -> Result<(), TransportError> {
        // SAFETY: the request was made by this agent and not released.
        let mut status = unsafe { (self.api.post_xfer_req)(self.agent, request, null_mut()) };
        let looks = (patience.as_micros() / LOOK_EVERY.as_micros()) as u64;
        let mut looked = 0;
        while status == IN_PROGRESS {
            if looked < u64::from(HASTY_LOOKS) {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOOK_EVERY);
            }
            looked += 1;
            if looked > looks + u64::from(HASTY_LOOKS) {
                let ms = patience.as_millis() as u64;
                return Err(TransportError::Stalled { ms });
            }
            // SAFETY: as above.
            status = unsafe { (self.api.get_xfer_status)(self.agent, request) };
        }
        done("reading the peer's memory", status)
    }

    /// A list of one range.
    fn list(&self, address: usize, bytes: usize) -> Result<List, TransportError> {
        let mut list = List(null_mut(), self.api);
        // SAFETY: the handle is made by the first call before the second uses it.
        unsafe {
            let made = (self.api.create_xfer_dlist)(HOST_MEMORY, &mut list.0, false);
            done("making a list", made)?;
            done(
                "listing a range",
                (self.api.xfer_dlist_add_desc)(list.0, address, bytes, 0),
            )?;
        }
        Ok(list)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let api = self.api;
        let give_back = |handle: Handle, destroy: unsafe extern "C" fn(Handle) -> c_int| {
            if !handle.is_null() {
                // SAFETY: made by NIXL, and given back once. Nobody can be told of a failure.
                unsafe { destroy(handle) };
            }
        };
        if !self.registered.is_null() {
            // SAFETY: registered with this agent, which is alive.
            unsafe { (api.deregister_mem)(self.agent, self.registered, self.options) };
        }
        if let Some(peer) = &self.peer {
            // SAFETY: the agent is alive, and the name is one that it met.
            unsafe { (api.invalidate_remote_md)(self.agent, peer.as_ptr()) };
        }
        give_back(self.registered, api.destroy_reg_dlist);
        give_back(self.options, api.destroy_opt_args);
        give_back(self.backend, api.destroy_backend);
        give_back(self.params, api.destroy_params);
        give_back(self.memories, api.destroy_mem_list);
        give_back(self.agent, api.destroy_agent);
    }
}

struct List(Handle, Api);

impl Drop for List {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by NIXL, and given back once.
            unsafe { (self.1.destroy_xfer_dlist)(self.0) };
        }
    }
}
