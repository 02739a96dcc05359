//! Walks the expressions of a text.

use sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, DataType, ExactNumberInfo, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentClause, FunctionArgumentList, FunctionArguments, InTarget,
    UnaryOperator, Value, ValueWithSpan, WindowFrame, WindowFrameBound, WindowSpec, WindowType,
};

use super::{
    Placeholders, SqlError, functions,
    names::check_reserved,
    query::{Walk, empty, refused, single},
};

/// Collations of every SQLite.
const COLLATIONS: [&str; 3] = ["BINARY", "NOCASE", "RTRIM"];

impl Walk<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Result<(), SqlError> {
        match expr {
            Expr::Identifier(name) => self.names.use_column(name),
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [table, column] => self.names.use_qualified(table, Some(column)),
                _ => refused("a column with a database before its table"),
            },
            Expr::Value(value) => self.value(value),
            Expr::Nested(expr)
            | Expr::IsFalse(expr)
            | Expr::IsNotFalse(expr)
            | Expr::IsTrue(expr)
            | Expr::IsNotTrue(expr)
            | Expr::IsNull(expr)
            | Expr::IsNotNull(expr) => self.expr(expr),
            Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right) => {
                self.expr(left)?;
                self.expr(right)
            }
            Expr::UnaryOp { op, expr } => match op {
                UnaryOperator::Plus
                | UnaryOperator::Minus
                | UnaryOperator::Not
                | UnaryOperator::BitwiseNot => self.expr(expr),
                _ => refused(&format!("the operator `{op}`")),
            },
            Expr::BinaryOp { left, op, right } => {
                check_operator(op)?;
                self.expr(left)?;
                self.expr(right)
            }
            Expr::Between {
                expr,
                negated: _,
                low,
                high,
            } => {
                self.expr(expr)?;
                self.expr(low)?;
                self.expr(high)
            }
            Expr::Like {
                negated: _,
                any: false,
                expr,
                pattern,
                escape_char,
            } => {
                self.expr(expr)?;
                self.expr(pattern)?;
                escape_char.iter().try_for_each(|escape| self.expr(escape))
            }
            Expr::In {
                expr,
                target,
                negated: _,
                global: false,
            } => {
                self.expr(expr)?;
                self.in_target(target)
            }
            Expr::Exists {
                subquery,
                negated: _,
            }
            | Expr::Subquery(subquery) => self.query(subquery),
            Expr::Tuple(exprs) => self.exprs(exprs),
            Expr::Function(function) => self.function(function),
            _ => self.special(expr),
        }
    }

    /// Expressions with a grammar of their own.
    fn special(&mut self, expr: &Expr) -> Result<(), SqlError> {
        match expr {
            Expr::Case {
                case_token: _,
                end_token: _,
                operand,
                conditions,
                else_result,
            } => {
                operand
                    .iter()
                    .chain(else_result)
                    .try_for_each(|expr| self.expr(expr))?;
                for CaseWhen { condition, result } in conditions {
                    self.expr(condition)?;
                    self.expr(result)?;
                }
                Ok(())
            }
            Expr::Cast {
                kind: CastKind::Cast,
                expr,
                data_type,
                format: None,
            } => {
                check_type(data_type)?;
                self.expr(expr)
            }
            Expr::Collate { expr, collation } => {
                let name = single(collation)?;
                if !COLLATIONS
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(&name.value))
                {
                    return refused(&format!("the collation `{collation}`"));
                }
                self.expr(expr)
            }
            Expr::Substring {
                expr,
                substring_from,
                substring_for,
                special: true,
                shorthand: _,
            } => {
                self.expr(expr)?;
                let rest = substring_from.iter().chain(substring_for);
                rest.into_iter().try_for_each(|expr| self.expr(expr))
            }
            Expr::Trim {
                trim_where: None,
                trim_what: None,
                expr,
                trim_characters,
            } => {
                self.expr(expr)?;
                trim_characters
                    .iter()
                    .flatten()
                    .try_for_each(|expr| self.expr(expr))
            }
            _ => refused(&format!("`{expr}`")),
        }
    }

    fn in_target(&mut self, target: &InTarget) -> Result<(), SqlError> {
        match target {
            InTarget::List(exprs) => self.exprs(exprs),
            InTarget::Subquery(query) => self.query(query),
            InTarget::Table { name, args: None } => self.table_of_values(name),
            InTarget::Table {
                name,
                args: Some(_),
            } => Err(SqlError::new(format!(
                "`{name}(…)`: table functions are not offered"
            ))),
            InTarget::Unnest(_) => refused("UNNEST"),
        }
    }

    fn value(&mut self, value: &ValueWithSpan) -> Result<(), SqlError> {
        match &value.value {
            Value::Number(_, false)
            | Value::SingleQuotedString(_)
            | Value::HexStringLiteral(_)
            | Value::Boolean(_)
            | Value::Null => Ok(()),
            Value::Placeholder(text) => self.placeholder(text, value),
            _ => refused(&format!("the value {value}")),
        }
    }

    fn placeholder(&mut self, text: &str, value: &ValueWithSpan) -> Result<(), SqlError> {
        let known = match (self.placeholders, text.strip_prefix(':')) {
            (Placeholders::Positional(_), None) if text == "?" => {
                self.positional.push(value.span);
                return Ok(());
            }
            (_, Some("partition")) => {
                self.edit(value.span, "?1".to_owned());
                return Ok(());
            }
            (Placeholders::Named(names), Some(name)) if names.contains(&name) => name,
            (Placeholders::Named(names), _) => {
                let names: Vec<String> = names.iter().map(|name| format!(":{name}")).collect();
                return Err(SqlError::new(format!(
                    "`{text}` is no value: there are :partition, {}",
                    names.join(", ")
                )));
            }
            (Placeholders::Positional(_), _) => {
                return Err(SqlError::new(format!("`{text}` is no value: write `?`")));
            }
        };
        let place = self.parameters.iter().position(|name| name == known);
        let place = place.unwrap_or_else(|| {
            self.parameters.push(known.to_owned());
            self.parameters.len() - 1
        });
        self.edit(value.span, format!("?{}", place + 2));
        Ok(())
    }

    fn function(&mut self, function: &Function) -> Result<(), SqlError> {
        let Function {
            name,
            uses_odbc_syntax,
            parameters,
            args,
            within_group,
            filter,
            null_treatment,
            over,
        } = function;
        let name = single(name)?;
        if !functions::is_allowed(&name.value) {
            return refused(&format!("the function `{}`", name.value));
        }
        if *uses_odbc_syntax || null_treatment.is_some() {
            return refused("this way to call a function");
        }
        empty(within_group, "WITHIN GROUP")?;
        let FunctionArguments::None = parameters else {
            return refused("a function with parameters");
        };
        match args {
            FunctionArguments::None => {}
            FunctionArguments::Subquery(_) => return refused("a query as arguments"),
            FunctionArguments::List(list) => self.arguments(list)?,
        }
        filter.iter().try_for_each(|expr| self.expr(expr))?;
        match over {
            None => Ok(()),
            Some(WindowType::NamedWindow(name)) => check_reserved(name),
            Some(WindowType::WindowSpec(window)) => self.window(window),
        }
    }

    fn arguments(&mut self, list: &FunctionArgumentList) -> Result<(), SqlError> {
        let FunctionArgumentList {
            duplicate_treatment: _,
            args,
            clauses,
        } = list;
        for arg in args {
            match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.expr(expr)?,
                FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => {}
                _ => return refused("this kind of argument"),
            }
        }
        for clause in clauses {
            match clause {
                FunctionArgumentClause::OrderBy(exprs) => self.order_by_exprs(exprs)?,
                _ => return refused("a clause in the arguments of a function"),
            }
        }
        Ok(())
    }

    pub(super) fn window(&mut self, window: &WindowSpec) -> Result<(), SqlError> {
        let WindowSpec {
            window_name,
            partition_by,
            order_by,
            window_frame,
        } = window;
        window_name.iter().try_for_each(check_reserved)?;
        self.exprs(partition_by)?;
        self.order_by_exprs(order_by)?;
        let Some(WindowFrame {
            units: _,
            start_bound,
            end_bound,
        }) = window_frame
        else {
            return Ok(());
        };
        for bound in [Some(start_bound), end_bound.as_ref()]
            .into_iter()
            .flatten()
        {
            match bound {
                WindowFrameBound::CurrentRow => {}
                WindowFrameBound::Preceding(expr) | WindowFrameBound::Following(expr) => {
                    expr.iter().try_for_each(|expr| self.expr(expr))?;
                }
            }
        }
        Ok(())
    }
}

fn check_operator(op: &BinaryOperator) -> Result<(), SqlError> {
    match op {
        BinaryOperator::Plus
        | BinaryOperator::Minus
        | BinaryOperator::Multiply
        | BinaryOperator::Divide
        | BinaryOperator::Modulo
        | BinaryOperator::StringConcat
        | BinaryOperator::Gt
        | BinaryOperator::Lt
        | BinaryOperator::GtEq
        | BinaryOperator::LtEq
        | BinaryOperator::Eq
        | BinaryOperator::NotEq
        | BinaryOperator::And
        | BinaryOperator::Or
        | BinaryOperator::BitwiseOr
        | BinaryOperator::BitwiseAnd
        | BinaryOperator::PGBitwiseShiftLeft
        | BinaryOperator::PGBitwiseShiftRight
        | BinaryOperator::Arrow
        | BinaryOperator::LongArrow
        | BinaryOperator::Glob
        | BinaryOperator::Is
        | BinaryOperator::IsNot => Ok(()),
        _ => refused(&format!("the operator `{op}`")),
    }
}

fn check_type(data_type: &DataType) -> Result<(), SqlError> {
    match data_type {
        DataType::Text
        | DataType::Integer(None)
        | DataType::Int(None)
        | DataType::Real
        | DataType::Numeric(ExactNumberInfo::None)
        | DataType::Blob(None) => Ok(()),
        _ => refused(&format!("the type `{data_type}`")),
    }
}
