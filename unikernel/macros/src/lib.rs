//! The attribute `#[homenode::main]`, which the crate `homenode` hands on.

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// What the program's function is called when the entry has taken the name `main`.
const RENAMED: &str = "__homenode_program_main";

/// Makes a function the program's entry.
///
/// The function takes [`homenode::Args`](https://docs.rs/homenode) or nothing, and returns `()`, `ExitCode` or a `Result` whose error can
/// be displayed: whatever implements `homenode::Termination`.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(argument) = arguments.into_iter().next() {
        return error(argument.span(), "`#[homenode::main]` takes no arguments");
    }
    match entry(item) {
        Ok(program) => program,
        Err((span, message)) => error(span, message),
    }
}

/// The item under another name, and the entry that calls it.
fn entry(item: TokenStream) -> Result<TokenStream, (Span, &'static str)> {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    let word = |token: &TokenTree| matches!(token, TokenTree::Ident(_)).then(|| token.to_string());
    let Some(fn_at) = tokens
        .iter()
        .position(|token| word(token).as_deref() == Some("fn"))
    else {
        let span = tokens.first().map_or_else(Span::call_site, TokenTree::span);
        return Err((span, "`#[homenode::main]` belongs on a function"));
    };
    for token in &tokens[..fn_at] {
        match word(token).as_deref() {
            Some("async") => {
                return Err((
                    token.span(),
                    "a program's main can not be async: there is no executor",
                ));
            }
            Some("const" | "unsafe" | "extern") => {
                return Err((
                    token.span(),
                    "a program's main is a plain function: `fn main(args: Args)`",
                ));
            }
            Some("mod" | "impl" | "trait" | "struct" | "enum" | "static" | "type" | "use" | "union") => {
                return Err((token.span(), "`#[homenode::main]` belongs on a function"));
            }
            _ => {}
        }
    }
    let (Some(name), Some(parameters)) = (tokens.get(fn_at + 1), tokens.get(fn_at + 2)) else {
        return Err((tokens[fn_at].span(), "`#[homenode::main]` belongs on a function"));
    };
    let parameters = match parameters {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => group,
        other => return Err((other.span(), "a program's main can not be generic")),
    };
    let takes_arguments = match top_level_parameters(parameters) {
        0 => false,
        1 => true,
        _ => {
            return Err((
                parameters.span(),
                "a program's main takes one parameter, `args: Args`, or none",
            ));
        }
    };

    // The name keeps its place in the source for the compiler's messages, and is looked up where the entry is expanded.
    let renamed = Ident::new(RENAMED, name.span());
    tokens[fn_at + 1] = renamed.clone().into();
    let mut program: TokenStream = tokens.into_iter().collect();
    let main = if takes_arguments {
        TokenTree::from(renamed).into()
    } else {
        without_arguments(renamed)
    };
    program.extend(call_of_entry(main));
    Ok(program)
}

/// How many parameters stand in these parentheses.
fn top_level_parameters(parentheses: &Group) -> usize {
    let tokens: Vec<TokenTree> = parentheses.stream().into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
    tokens
        .split(is_comma)
        .filter(|parameter| !parameter.is_empty())
        .count()
}

/// `|_: ::homenode::Args| NAME()`
fn without_arguments(name: Ident) -> TokenStream {
    let mut closure: TokenStream = "|_: ::homenode::Args|".parse().expect("this is Rust");
    closure.extend([
        TokenTree::from(name),
        Group::new(Delimiter::Parenthesis, TokenStream::new()).into(),
    ]);
    [TokenTree::from(Group::new(Delimiter::Parenthesis, closure))]
        .into_iter()
        .collect()
}

/// `::homenode::__entry!(MAIN);`
fn call_of_entry(main: TokenStream) -> TokenStream {
    let mut call: TokenStream = "::homenode::__entry!".parse().expect("this is Rust");
    call.extend([
        TokenTree::from(Group::new(Delimiter::Parenthesis, main)),
        Punct::new(';', Spacing::Alone).into(),
    ]);
    call
}

/// A message of the compiler's at `span`.
fn error(span: Span, message: &str) -> TokenStream {
    let text: TokenStream = format!("::core::compile_error!{{{message:?}}}")
        .parse()
        .expect("this is Rust");
    text.into_iter()
        .map(|mut token| {
            token.set_span(span);
            token
        })
        .collect()
}
