//! The kernel's command line: kernel words, ` -- `, the application's arguments.

use anyhow::{Result, ensure};

/// The word that ends the kernel's words.
const SEPARATOR: &str = "--";

/// Joins kernel words, as the user wrote them, and the application's arguments, which are quoted where that is needed.
///
/// # Errors
/// If the kernel words contain the separator `--`, or a word contains a control character, which no console could show.
pub fn join(kernel_words: &str, arguments: &[String]) -> Result<String> {
    let mut line = kernel_words.trim().replace(['\n', '\t'], " ");
    ensure!(
        line.split(' ').all(|word| word != SEPARATOR),
        "--cmdline takes kernel words only; write the application's arguments last, behind `--`"
    );
    if !arguments.is_empty() {
        line = format!("{line} {SEPARATOR}");
        for argument in arguments {
            line.push(' ');
            line += &quote(argument);
        }
    }
    ensure!(
        !line.contains(|c: char| c.is_control()),
        "a control character in the command line {line:?}"
    );
    Ok(line)
}

/// Puts `argument` in double quotes if it is empty or contains white space, quotes or backslashes.
fn quote(argument: &str) -> String {
    let plain =
        !argument.is_empty() && !argument.contains(|c: char| c.is_whitespace() || c == '"' || c == '\\');
    if plain {
        return argument.to_owned();
    }
    let escaped = argument.replace('\\', r"\\").replace('"', r#"\""#);
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(words: &str, arguments: &[&str]) -> String {
        join(
            words,
            &arguments.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )
        .unwrap()
    }

    #[test]
    fn words_come_first_then_arguments() {
        assert_eq!(joined("", &[]), "");
        assert_eq!(joined("log=debug", &[]), "log=debug");
        assert_eq!(joined("", &["--npb", "S"]), " -- --npb S");
        assert_eq!(
            joined(" numa=off\nlog=debug ", &["--n", "64"]),
            "numa=off log=debug -- --n 64"
        );
    }

    #[test]
    fn what_would_fall_apart_is_quoted() {
        assert_eq!(
            joined("", &["a b", "", r#"say "hi""#, r"back\slash"]),
            r#" -- "a b" "" "say \"hi\"" "back\\slash""#
        );
        assert_eq!(joined(r#"word="a  b""#, &["x"]), r#"word="a  b" -- x"#);
    }

    #[test]
    fn separators_and_control_characters_are_refused() {
        assert!(join("log=debug -- --n 64", &[]).is_err());
        assert!(join("", &["a\nb".to_owned()]).is_err());
    }
}
