//! `lacuna-bench`: measures lacuna beside its peers. The library says more.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    lacuna_bench::main()
}
