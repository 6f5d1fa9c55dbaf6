//! `lacuna-bench`: measures lacuna beside its peers. See the library for details.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    lacuna_bench::main()
}
