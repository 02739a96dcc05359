//! Checks a parsed expression before it may run: names, functions, patterns, nesting.
//!
//! The interpreter finds an unknown name when it reaches it, which may be weeks later. Here each
//! is found when the server starts.

use std::collections::BTreeMap;

use cel::{
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SelectExpr, operators,
    },
    parser::Expression as Ast,
};
use regex::RegexBuilder;
use tidewater_schema::Table;

use super::{EXPRESSION_DEPTH_MAX, Pattern, values::Columns};

/// Operators that the parser makes calls of.
const OPERATORS: [&str; 20] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
    // Of the loops.
    operators::NOT_STRICTLY_FALSE,
    MATCHES,
];

/// Functions, with how many arguments they take and whether as `f(x)` or `x.f()`.
const FUNCTIONS: [(&str, usize, Style); 14] = [
    ("size", 1, Style::Either),
    ("contains", 2, Style::Method),
    ("startsWith", 2, Style::Method),
    ("endsWith", 2, Style::Method),
    (MATCHES, 2, Style::Either),
    ("bool", 1, Style::Function),
    ("int", 1, Style::Function),
    ("uint", 1, Style::Function),
    ("double", 1, Style::Function),
    ("string", 1, Style::Function),
    ("bytes", 1, Style::Function),
    ("type", 1, Style::Function),
    ("dyn", 1, Style::Function),
    ("has", 1, Style::Function),
];

/// Types, which are values too.
const TYPES: [&str; 10] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
];

/// The function that searches with a regular expression. It is ours, not the interpreter's.
pub(super) const MATCHES: &str = "matches";

const ROW: &str = "row";
const STORED: &str = "stored";

/// Variables beside the rows.
const TEXTS: [&str; 3] = ["op", "actor", "partition"];

/// Memory of a compiled pattern: with more states, a byte of text costs too much.
const PATTERN_SIZE_MAX: usize = 256 * 1024;
/// The smallest size that is told apart.
const PATTERN_SIZE_MIN: usize = 4 * 1024;

#[derive(Clone, Copy, Eq, PartialEq)]
enum Style {
    Function,
    Method,
    Either,
}

/// What is gathered on a walk through an expression.
pub(super) struct Check<'a> {
    table: &'a Table,
    depth: usize,
    /// Variables of the loops around.
    variables: Vec<String>,
    pub(super) row: Columns,
    pub(super) stored: Columns,
    pub(super) patterns: BTreeMap<String, Pattern>,
}

impl<'a> Check<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        Self {
            table,
            depth: 0,
            variables: Vec::new(),
            row: Columns::default(),
            stored: Columns::default(),
            patterns: BTreeMap::new(),
        }
    }

    pub(super) fn expression(&mut self, ast: &Ast) -> Result<(), String> {
        self.depth += 1;
        if self.depth > EXPRESSION_DEPTH_MAX {
            return Err(format!(
                "the expression nests deeper than {EXPRESSION_DEPTH_MAX} levels"
            ));
        }
        match &ast.expr {
            Expr::Literal(_) => {}
            Expr::Ident(name) => self.variable(name)?,
            Expr::Select(select) => self.select(select)?,
            Expr::Call(call) => self.call(call)?,
            Expr::List(list) => self.expressions(&list.elements)?,
            Expr::Map(map) => {
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return Err("a map has keys and values".to_owned());
                    };
                    self.expression(&entry.key)?;
                    self.expression(&entry.value)?;
                }
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension)?,
            Expr::Struct(message) => {
                return Err(format!("there is no type `{}` to make", message.type_name));
            }
            Expr::Unspecified => return Err("a part of the expression is missing".to_owned()),
        }
        self.depth -= 1;
        Ok(())
    }

    fn expressions<'b>(&mut self, asts: impl IntoIterator<Item = &'b Ast>) -> Result<(), String> {
        asts.into_iter().try_for_each(|ast| self.expression(ast))
    }

    /// A variable as a whole: of a row, every column.
    fn variable(&mut self, name: &str) -> Result<(), String> {
        if let Some(columns) = self.columns_of(name) {
            *columns = Columns::All;
            return Ok(());
        }
        let known = TEXTS.contains(&name)
            || TYPES.contains(&name)
            || self.variables.iter().any(|variable| variable == name);
        if known {
            return Ok(());
        }
        Err(format!(
            "there is no `{name}`: the variables are row, stored, op, actor and partition"
        ))
    }

    fn columns_of(&mut self, variable: &str) -> Option<&mut Columns> {
        match variable {
            ROW => Some(&mut self.row),
            STORED => Some(&mut self.stored),
            _ => None,
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Result<(), String> {
        match &select.operand.expr {
            Expr::Ident(name) if is_row(name) => self.column(name, &select.field),
            _ => self.expression(&select.operand),
        }
    }

    /// A use of one column.
    fn column(&mut self, variable: &str, name: &str) -> Result<(), String> {
        let table = self.table;
        let Some(at) = table.column(name) else {
            return Err(format!("table `{}` has no column `{name}`", table.name));
        };
        if table.metas[at].encrypted {
            return Err(format!(
                "column `{name}` of `{}` is encrypted by clients: the server cannot judge it",
                table.name
            ));
        }
        if let Some(columns) = self.columns_of(variable) {
            columns.add(at);
        }
        Ok(())
    }

    fn call(&mut self, call: &CallExpr) -> Result<(), String> {
        let name = call.func_name.as_str();
        if !OPERATORS.contains(&name) || name == MATCHES {
            check_function(call)?;
        }
        if name == MATCHES {
            self.pattern(call)?;
        }
        match (name, call.args.as_slice()) {
            // To ask whether there is a row is not to read it.
            (operators::EQUALS | operators::NOT_EQUALS, [left, right])
                if is_null_test(left, right) || is_null_test(right, left) =>
            {
                Ok(())
            }
            (operators::INDEX, [operand, index]) => match (&operand.expr, &index.expr) {
                (Expr::Ident(name), Expr::Literal(LiteralValue::String(column)))
                    if is_row(name) =>
                {
                    self.column(name, column.inner())
                }
                _ => self.expressions([operand, index]),
            },
            (_, args) => self.expressions(call.target.as_deref().into_iter().chain(args)),
        }
    }

    /// A pattern must be known now: one from a row could be anything.
    fn pattern(&mut self, call: &CallExpr) -> Result<(), String> {
        let Some(Expr::Literal(LiteralValue::String(pattern))) =
            call.args.last().map(|pattern| &pattern.expr)
        else {
            return Err("the pattern of matches() must be a text in quotes".to_owned());
        };
        let pattern = pattern.inner();
        if !self.patterns.contains_key(pattern) {
            self.patterns
                .insert(pattern.to_owned(), compile_pattern(pattern)?);
        }
        Ok(())
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<(), String> {
        let ComprehensionExpr {
            iter_range,
            iter_var,
            iter_var2,
            accu_var,
            accu_init,
            loop_cond,
            loop_step,
            result,
        } = comprehension;
        if iter_var2.is_some() {
            return Err("a loop has one variable".to_owned());
        }
        let hides = is_row(iter_var)
            || TEXTS.contains(&iter_var.as_str())
            || TYPES.contains(&iter_var.as_str())
            || self.variables.contains(iter_var);
        if hides {
            return Err(format!(
                "the loop variable `{iter_var}` hides another of that name"
            ));
        }
        self.expressions([iter_range, accu_init])?;
        let around = self.variables.len();
        self.variables.extend([iter_var.clone(), accu_var.clone()]);
        self.expressions([loop_cond, loop_step, result])?;
        self.variables.truncate(around);
        Ok(())
    }
}

fn is_row(name: &str) -> bool {
    name == ROW || name == STORED
}

fn is_null_test(row: &Ast, null: &Ast) -> bool {
    matches!(&row.expr, Expr::Ident(name) if is_row(name))
        && matches!(null.expr, Expr::Literal(LiteralValue::Null))
}

fn check_function(call: &CallExpr) -> Result<(), String> {
    let name = call.func_name.as_str();
    let Some((_, arguments, style)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
        return Err(format!("there is no function `{name}`"));
    };
    let given = call.args.len() + usize::from(call.target.is_some());
    if given != *arguments {
        return Err(format!(
            "`{name}` takes {arguments} values and gets {given}"
        ));
    }
    match (style, &call.target) {
        (Style::Function, Some(_)) => Err(format!("`{name}` is called as `{name}(…)`")),
        (Style::Method, None) => Err(format!("`{name}` is called as `….{name}(…)`")),
        _ => Ok(()),
    }
}

/// Compiles a pattern and finds out how large it is.
fn compile_pattern(pattern: &str) -> Result<Pattern, String> {
    let mut size = PATTERN_SIZE_MIN;
    loop {
        match RegexBuilder::new(pattern).size_limit(size).build() {
            Ok(regex) => return Ok(Pattern { regex, size }),
            Err(regex::Error::CompiledTooBig(_)) if size < PATTERN_SIZE_MAX => size *= 2,
            Err(regex::Error::CompiledTooBig(_)) => {
                return Err(format!(
                    "the pattern {pattern:?} is too large: repeat less, or allow fewer kinds of \
                     characters"
                ));
            }
            Err(error) => return Err(format!("the pattern {pattern:?}: {error}")),
        }
    }
}
