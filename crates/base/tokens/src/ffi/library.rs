//! Libraries that are loaded on first use.

use lacuna_contracts::{Error, Kind, Result};
use libloading::Library;

/// Loads a library for the rest of the process. `package` is the Debian package of the library.
pub(super) fn load(file: &str, package: &str, purpose: &str) -> Result<Library> {
    // SAFETY: a system library, as trusted as the libraries that the program is linked with; its
    // initialisers are sound.
    unsafe { Library::new(file) }.map_err(|e| {
        Error::new(Kind::Other, format!("cannot use {purpose}"))
            .found(e.to_string())
            .expected(format!("the library {file}"))
            .hint(format!("install the package {package} (its name on Debian and Ubuntu)"))
    })
}

/// The error for a library that lacks a function.
pub(super) fn too_old(e: &libloading::Error, package: &str, purpose: &str) -> Error {
    Error::new(Kind::Other, format!("cannot use {purpose}"))
        .found(e.to_string())
        .hint(format!("install a newer version of the package {package}"))
}

/// Declares the functions of a library as in its header, and looks them up.
macro_rules! functions {
    ($api:ident: $($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions used here.
        // The names are those of the header.
        #[allow(non_snake_case, clippy::struct_field_names)]
        struct $api {
            // SAFETY: only types; each call has its own SAFETY comment.
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $api {
            fn find(library: &libloading::Library) -> std::result::Result<$api, libloading::Error> {
                Ok($api {
                    // SAFETY: the type is that of the function in the header.
                    $($name: unsafe { *library.get(stringify!($name).as_bytes())? },)*
                })
            }
        }
    };
}
pub(super) use functions;
