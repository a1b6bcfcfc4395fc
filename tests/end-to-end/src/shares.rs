//! Builds of a program with known shares of its processor time, against which profiles are checked:
//! `programs/shares/shares.c`, and the same program in Go and Java.
//!
//! 30 % of the time goes to memmove of 64 KiB, 20 % to the kernel's copy of reads of 1 MiB, the rest to arithmetic. The
//! program steers itself by its own processor clock, so the shares also hold on a busy machine. It prints `ready` when
//! they hold, works until its processor time is used up or SIGTERM comes, then prints its [`Shares`].

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Program, Scratch};

/// One way to build the program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Build {
    /// C with frame pointers and symbols, dynamically linked with glibc.
    FramePointers,
    /// C without frame pointers, with symbols and unwind tables.
    NoFramePointers,
    /// C without frame pointers and symbols; unwind tables remain.
    Stripped,
    /// C as a static executable at a random address, with symbols.
    StaticPie,
    /// C, statically linked with musl.
    Musl,
    /// Go, which links statically and keeps frame pointers.
    Go,
    /// Java, run by the system's JVM.
    Java,
}

/// Threads or processes that do the work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// The main thread does all work.
    Main,
    /// Threads of 50 ms each work, one after another; only in C.
    Threads,
    /// Processes of 50 ms each work, one after another; only in C.
    Forks,
}

/// Program with known shares, as one build made it.
#[derive(Clone, Debug)]
pub struct SharesProgram {
    path: PathBuf,
    before: Vec<String>,
    after: Vec<String>,
}

/// The program's own account of its processor time, as fractions of the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Fraction of the time in memmove.
    pub memmove: f64,
    /// Fraction of the time in the system calls that copy.
    pub kernel: f64,
    /// Fraction of the time in arithmetic.
    pub compute: f64,
    /// Fraction of the time that starts and ends threads or processes, and of runtimes.
    pub other: f64,
    /// Whether the kernel copies from huge pages. If so, about 96 % of `kernel` is the copy itself; with small pages,
    /// about 60 %, and for Java what the file system of the scratch directory makes of it.
    pub is_huge: bool,
}

impl Build {
    /// Every way to build the program.
    pub const ALL: [Self; 7] = [
        Self::FramePointers,
        Self::NoFramePointers,
        Self::Stripped,
        Self::StaticPie,
        Self::Musl,
        Self::Go,
        Self::Java,
    ];

    /// Builds the program in `scratch`.
    ///
    /// # Errors
    /// The reason, if the build needs a tool that this machine does not have.
    ///
    /// # Panics
    /// When the compiler reports an error.
    pub fn make(self, scratch: &Scratch) -> Result<SharesProgram, String> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/shares");
        let output = scratch.join(&format!("shares-{self:?}"));
        let c = |compiler: &str, flags: &[&str]| {
            let common = ["-O1", "-g", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
            let command =
                Program::new(find(compiler)?).args(common).args([&output, &directory.join("shares.c")]);
            let _ = command.args(flags).run(scratch, "compile-shares").expect_success();
            Ok(SharesProgram { path: output.clone(), before: vec![], after: vec![] })
        };
        match self {
            Self::FramePointers => c("cc", &["-fno-omit-frame-pointer"]),
            Self::NoFramePointers => c("cc", &["-fomit-frame-pointer"]),
            Self::Stripped => c("cc", &["-fomit-frame-pointer", "-s"]),
            Self::StaticPie => c("cc", &["-fomit-frame-pointer", "-static-pie"]),
            Self::Musl => c("musl-gcc", &["-fomit-frame-pointer", "-static"]),
            Self::Go => {
                // Neither a module nor another toolchain is looked for, let alone fetched.
                let go = Program::new(find("go")?).env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
                let arguments = ["build".as_ref(), "-o".as_ref(), output.as_path()];
                let go = go.args(arguments).args([directory.join("shares.go")]);
                let _ = go.run(scratch, "compile-shares").expect_success();
                Ok(SharesProgram { path: output, before: vec![], after: vec![] })
            }
            Self::Java => {
                let java = find("java")?;
                std::fs::create_dir_all(&output).expect("directory");
                let compiler = Program::new(find("javac")?).args(["-d".as_ref(), output.as_os_str()]);
                let _ = compiler
                    .args([directory.join("Shares.java")])
                    .run(scratch, "compile-shares")
                    .expect_success();
                let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
                let before = ["-XX:+UseSerialGC", "-cp"].map(str::to_owned).into_iter();
                let before = before.chain([text(&output), "Shares".to_owned()]).collect();
                Ok(SharesProgram { path: java, before, after: vec![text(&output.join("file"))] })
            }
        }
    }
}

/// Returns the path of a compiler or runtime.
fn find(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
    let mut candidates = directories.map(|directory| directory.join(name));
    candidates
        .find(|path| Command::new(path).arg("--help").output().is_ok())
        .ok_or_else(|| format!("there is no {name}"))
}

impl SharesProgram {
    /// The program with its arguments: it ends after `cpu_seconds` of processor time.
    #[must_use]
    pub fn program(&self, work: Work, cpu_seconds: u32) -> Program {
        let mode = match work {
            Work::Main => "main",
            Work::Threads => "threads",
            Work::Forks => "forks",
        };
        Program::new(&self.path).args(&self.before).args([mode, &cpu_seconds.to_string()]).args(&self.after)
    }
}

impl Shares {
    /// Reads the last line of the program's output.
    ///
    /// # Panics
    /// When that line is not the program's account.
    #[must_use]
    pub fn parse(output: &[u8]) -> Self {
        let output = String::from_utf8_lossy(output);
        let account: Value = output
            .lines()
            .next_back()
            .and_then(|line| serde_json::from_str(line).ok())
            .unwrap_or_else(|| panic!("no account of shares in {output:?}"));
        let nanoseconds =
            |name: &str| account[name].as_f64().unwrap_or_else(|| panic!("{name} of {account}"));
        let total = nanoseconds("total_ns");
        Self {
            memmove: nanoseconds("memmove_ns") / total,
            kernel: nanoseconds("kernel_ns") / total,
            compute: nanoseconds("compute_ns") / total,
            other: nanoseconds("other_ns") / total,
            is_huge: account["is_huge"].as_bool().unwrap_or_else(|| panic!("is_huge of {account}")),
        }
    }
}
