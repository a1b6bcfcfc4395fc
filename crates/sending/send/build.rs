//! Sets the library's soname.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libuncopy_send.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
