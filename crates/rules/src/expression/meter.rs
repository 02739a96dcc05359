//! What bounds an evaluation: a budget of steps, and the rewriting that spends it.
//!
//! `a + b` becomes `@charge(a) + @charge(b)`. A name with `@` cannot be written in an expression.
//! The function hands its argument back and takes its size from the budget; with nothing left it
//! fails. What is charged is chosen so that nothing costs more than a small multiple of it:
//!
//! * operands of operators and functions: work and results are linear in them;
//! * elements of a list or map that is made: they are copied;
//! * what a loop runs over, because it is copied value by value, and every turn of the loop;
//! * not the operands of `.`, `[]`, `&&`, `||` and `? :`, which only pass values on.
//!
//! The interpreter knows the loops by their shape: `all` and `exists` by their step, `map` and
//! `filter` by `@result + [x]`, which it then does in place. The rewriting keeps these shapes.
//!
//! An error within `all` and `exists` is put aside in case a later turn decides without it. A
//! spent budget must end the loop, so its condition is charged too: an error there is final.

use std::sync::atomic::{AtomicU64, Ordering};

use cel::{
    common::{
        ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, operators},
        types::{CelBytes, CelDouble, CelList, CelMap, CelMapKey, CelString},
        value::Val,
    },
    parser::Expression as Ast,
};

/// Charges a value.
pub(super) const CHARGE: &str = "@charge";
/// Charges a value that is used as an index.
pub(super) const CHARGE_INDEX: &str = "@charge_index";

/// Bytes that one step handles.
pub(super) const BYTES_PER_STEP: usize = 256;

/// How the parser calls the result of a loop that is being made.
const ACCUMULATOR: &str = "@result";

/// The steps that are left.
#[derive(Debug)]
pub(super) struct Meter(AtomicU64);

/// There are no steps left.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Spent;

impl Meter {
    pub(super) fn new(steps: u64) -> Self {
        Self(AtomicU64::new(steps))
    }

    /// Takes steps. Once there are too few, there are none.
    pub(super) fn spend(&self, steps: u64) -> Result<(), Spent> {
        let left = self.0.load(Ordering::Relaxed);
        let rest = left.checked_sub(steps);
        self.0.store(rest.unwrap_or(0), Ordering::Relaxed);
        rest.map(|_| ()).ok_or(Spent)
    }

    /// Takes a step, and those for so many bytes.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<(), Spent> {
        let steps = u64::try_from(bytes / BYTES_PER_STEP).unwrap_or(u64::MAX);
        self.spend(steps.saturating_add(1))
    }

    /// Whether the budget ran out.
    pub(super) fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes what a value costs, with everything in it.
    pub(super) fn charge(&self, value: &dyn Val) -> Result<(), Spent> {
        if let Some(text) = value.downcast_ref::<CelString<'_>>() {
            return self.spend_bytes(text.inner().len());
        }
        if let Some(bytes) = value.downcast_ref::<CelBytes<'_>>() {
            return self.spend_bytes(bytes.inner().len());
        }
        self.spend(1)?;
        if let Some(list) = value.downcast_ref::<CelList<'_>>() {
            list.inner()
                .iter()
                .try_for_each(|value| self.charge(value.as_ref()))?;
        } else if let Some(map) = value.downcast_ref::<CelMap<'_>>() {
            for (key, value) in map.inner() {
                if let CelMapKey::String(key) = key {
                    self.spend_bytes(key.inner().len())?;
                }
                self.charge(value.as_ref())?;
            }
        }
        Ok(())
    }
}

/// Whether a value may be an index. The interpreter copies the whole list when a fraction is not
/// one, so fractions are never asked for.
pub(super) fn is_index(value: &dyn Val) -> bool {
    value.downcast_ref::<CelDouble>().is_none()
}

/// The expression with the meter in it.
pub(super) fn metered(ast: Ast) -> Ast {
    let Ast { id, expr } = ast;
    let expr = match expr {
        Expr::Call(call) => Expr::Call(metered_call(call)),
        Expr::Comprehension(comprehension) => {
            Expr::Comprehension(Box::new(metered_comprehension(*comprehension)))
        }
        Expr::Select(mut select) => {
            select.operand = Box::new(metered(*select.operand));
            Expr::Select(select)
        }
        Expr::List(mut list) => {
            list.elements = list.elements.into_iter().map(charged).collect();
            Expr::List(list)
        }
        Expr::Map(mut map) => {
            map.entries = map.entries.into_iter().map(metered_entry).collect();
            Expr::Map(map)
        }
        other @ (Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified) => other,
    };
    Ast { id, expr }
}

fn metered_entry(mut entry: IdedEntryExpr) -> IdedEntryExpr {
    if let EntryExpr::MapEntry(inner) = &mut entry.expr {
        inner.key = charged(std::mem::take(&mut inner.key));
        inner.value = charged(std::mem::take(&mut inner.value));
    }
    entry
}

fn metered_call(call: CallExpr) -> CallExpr {
    let CallExpr {
        func_name,
        target,
        args,
    } = call;
    let target = target.map(|target| Box::new(charged(*target)));
    let appends = func_name == operators::ADD && args.first().is_some_and(is_accumulator);
    let wrap: fn(usize, Ast) -> Ast = match func_name.as_str() {
        operators::LOGICAL_AND | operators::LOGICAL_OR | operators::NOT_STRICTLY_FALSE => {
            |_, arg| metered(arg)
        }
        operators::CONDITIONAL => |at, arg| if at == 0 { charged(arg) } else { metered(arg) },
        operators::INDEX => |at, arg| {
            if at == 0 {
                metered(arg)
            } else {
                wrapped(CHARGE_INDEX, metered(arg))
            }
        },
        _ if appends => |_, arg| metered(arg),
        _ => |_, arg| charged(arg),
    };
    let args = args
        .into_iter()
        .enumerate()
        .map(|(at, arg)| wrap(at, arg))
        .collect();
    CallExpr {
        func_name,
        target,
        args,
    }
}

fn metered_comprehension(comprehension: ComprehensionExpr) -> ComprehensionExpr {
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
    let loop_cond = match &loop_cond.expr {
        // `map`, `filter` and `exists_one` go on to the end: their steps are charged.
        Expr::Literal(_) => loop_cond,
        _ => wrapped(CHARGE, metered(loop_cond)),
    };
    ComprehensionExpr {
        iter_range: charged(iter_range),
        iter_var,
        iter_var2,
        accu_var,
        accu_init: metered(accu_init),
        loop_cond,
        loop_step: metered(loop_step),
        result: metered(result),
    }
}

/// An operand with the meter in and around it. A literal is no longer than its expression, and
/// what is in a list or map that is made was charged when it was put there.
fn charged(ast: Ast) -> Ast {
    match &ast.expr {
        Expr::Literal(_) => ast,
        Expr::List(_) | Expr::Map(_) => metered(ast),
        _ => wrapped(CHARGE, metered(ast)),
    }
}

fn wrapped(function: &str, ast: Ast) -> Ast {
    let id = ast.id;
    let call = CallExpr {
        func_name: function.to_owned(),
        target: None,
        args: vec![ast],
    };
    Ast {
        id,
        expr: Expr::Call(call),
    }
}

fn is_accumulator(ast: &Ast) -> bool {
    matches!(&ast.expr, Expr::Ident(name) if name == ACCUMULATOR)
}
