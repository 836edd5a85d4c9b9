//! Checks of a program file for an image. An image contains no other files, so a dynamic program
//! would not start.

use anyhow::{Context, Result, ensure};
use object::elf::PT_INTERP;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Architecture, Endianness, Object as _};

use super::build::Target;

/// Rejects a program for another platform, with a loader, or with symbols or debug information.
pub fn check(program: &[u8], target: Target) -> Result<()> {
    let file = ElfFile64::<Endianness>::parse(program).context("not a 64-bit ELF file")?;
    let expected = match target {
        Target::Amd64 => Architecture::X86_64,
        Target::Arm64 => Architecture::Aarch64,
    };
    let found = file.architecture();
    ensure!(found == expected, "for {found:?} instead of {expected:?}");
    let mut headers = file.elf_program_headers().iter();
    let needs_loader = headers.any(|h| h.p_type(file.endian()) == PT_INTERP);
    ensure!(!needs_loader, "not static: it names a loader");
    let symbols = file.has_debug_symbols() || file.symbols().next().is_some();
    ensure!(!symbols, "not stripped: it has symbols");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets in the file header: number of section headers, and position of the first.
    const E_SHNUM: usize = 0x3c;
    const E_SHOFF: usize = 0x28;

    fn refused(program: &[u8], target: Target) -> String {
        let error = check(program, target).expect_err("it is refused");
        error.to_string()
    }

    /// The test program itself: dynamic, with symbols.
    fn dynamic() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// The test program without the header that names a loader.
    fn with_symbols() -> Vec<u8> {
        let mut program = dynamic();
        let headers = usize::from_le_bytes(program[0x20..0x28].try_into().unwrap());
        let count = u16::from_le_bytes(program[0x38..0x3a].try_into().unwrap());
        for at in (0..usize::from(count)).map(|i| headers + i * 56) {
            if program[at..at + 4] == PT_INTERP.to_le_bytes() {
                program[at..at + 4].fill(0);
            }
        }
        program
    }

    /// The same program without sections, and thus without symbols.
    fn stripped() -> Vec<u8> {
        let mut program = with_symbols();
        program[E_SHOFF..E_SHOFF + 8].fill(0);
        program[E_SHNUM..E_SHNUM + 4].fill(0);
        program
    }

    #[test]
    fn a_program_that_cannot_run_alone_is_refused() {
        let here = Target::here();
        assert!(refused(&dynamic(), here).contains("not static"));
        assert!(refused(&with_symbols(), here).contains("not stripped"));
        check(&stripped(), here).unwrap();
        let other = match here {
            Target::Amd64 => Target::Arm64,
            Target::Arm64 => Target::Amd64,
        };
        assert!(refused(&stripped(), other).contains("instead of"));
        assert!(refused(b"#!/bin/sh\n", here).contains("not a 64-bit ELF"));
    }
}
