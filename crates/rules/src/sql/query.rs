//! Walks the queries of a text: common tables and their scopes, SELECT, joins, and every
//! occurrence of a table.
//!
//! Every node is taken apart without `..` where it is allowed, so that a clause which a later
//! version of the parser learns is a compile error here and not a hole.

use std::collections::BTreeSet;

use sqlparser::ast::{
    Distinct, Expr, GroupByExpr, Ident, Join, JoinConstraint, JoinOperator, LimitClause,
    NamedWindowDefinition, NamedWindowExpr, ObjectName, ObjectNamePart, OrderBy, OrderByExpr,
    OrderByKind, OrderBySort, Query as QueryNode, Select, SelectFlavor, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, SetOperator, SetQuantifier, TableAlias, TableFactor,
    TableWithJoins, Values, WildcardAdditionalOptions,
};
use tidewater_schema::{Schema, TableIndex};

use super::{
    Placeholders, Query, SqlError,
    names::{self, Names},
    tables::CommonTable,
    text::{Edit, Text},
};

/// What is gathered on a walk through the tree.
pub(super) struct Walk<'a> {
    pub(super) schema: &'a Schema,
    pub(super) placeholders: Placeholders<'a>,
    /// Common tables in sight, the innermost last.
    pub(super) scopes: Vec<Vec<CommonTable>>,
    pub(super) common_tables: usize,
    pub(super) tables: BTreeSet<TableIndex>,
    pub(super) names: Names,
    edits: Vec<Edit>,
    /// Idents that edits stand for, to be checked against the text.
    replaced: Vec<Ident>,
    /// Named placeholders in the order of their numbers, from `?2`.
    pub(super) parameters: Vec<String>,
    /// Places of `?`.
    pub(super) positional: Vec<sqlparser::tokenizer::Span>,
}

/// The refusal of a clause.
pub(super) fn refused<T>(what: &str) -> Result<T, SqlError> {
    Err(SqlError::new(format!("{what} is not allowed")))
}

/// Refuses a clause that is there.
pub(super) fn absent<T>(clause: &Option<T>, what: &str) -> Result<(), SqlError> {
    if clause.is_some() {
        refused(what)
    } else {
        Ok(())
    }
}

/// Refuses a list that is not empty.
pub(super) fn empty<T>(list: &[T], what: &str) -> Result<(), SqlError> {
    if list.is_empty() {
        Ok(())
    } else {
        refused(what)
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(schema: &'a Schema, placeholders: Placeholders<'a>) -> Self {
        Self {
            schema,
            placeholders,
            scopes: Vec::new(),
            common_tables: 0,
            tables: BTreeSet::new(),
            names: Names::default(),
            edits: Vec::new(),
            replaced: Vec::new(),
            parameters: Vec::new(),
            positional: Vec::new(),
        }
    }

    /// What the text becomes.
    pub(super) fn finish(mut self, text: &Text<'_>) -> Result<Query, SqlError> {
        self.names.check()?;
        for ident in &self.replaced {
            text.check_name(ident)?;
        }
        if let Placeholders::Positional(count) = self.placeholders {
            if self.positional.len() != count {
                return Err(SqlError::new(format!(
                    "there are {} values asked for with `?` and {count} declared",
                    self.positional.len()
                )));
            }
            self.positional.sort_by_key(|span| span.start);
            let numbered = self.positional.iter().zip(2..);
            self.edits.extend(numbered.map(|(span, number)| Edit {
                span: *span,
                text: format!("?{number}"),
            }));
        }
        Ok(Query {
            sql: text.edited(self.edits)?,
            tables: self.tables,
            parameters: self.parameters,
        })
    }

    pub(super) fn edit(&mut self, span: sqlparser::tokenizer::Span, text: String) {
        self.edits.push(Edit { span, text });
    }

    /// Writes something else where the text has this name.
    pub(super) fn replace(&mut self, name: &Ident, text: String) {
        self.replaced.push(name.clone());
        self.edit(name.span, text);
    }

    pub(super) fn query(&mut self, query: &QueryNode) -> Result<(), SqlError> {
        let QueryNode {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        absent(fetch, "FETCH")?;
        empty(locks, "FOR UPDATE")?;
        absent(for_clause, "FOR")?;
        absent(settings, "SETTINGS")?;
        absent(format_clause, "FORMAT")?;
        empty(pipe_operators, "a pipe operator")?;
        let scopes = self.scopes.len();
        if let Some(with) = with {
            self.with(with)?;
        }
        self.body(body)?;
        if let Some(order_by) = order_by {
            self.order_by(order_by)?;
        }
        match limit_clause {
            None => {}
            Some(LimitClause::LimitOffset {
                limit,
                offset,
                limit_by,
            }) => {
                empty(limit_by, "LIMIT BY")?;
                let offset = offset.as_ref().map(|offset| &offset.value);
                limit
                    .iter()
                    .chain(offset)
                    .try_for_each(|expr| self.expr(expr))?;
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => {
                self.expr(offset)?;
                self.expr(limit)?;
            }
        }
        self.scopes.truncate(scopes);
        Ok(())
    }

    fn body(&mut self, body: &SetExpr) -> Result<(), SqlError> {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::SetOperation {
                left,
                op,
                set_quantifier,
                right,
            } => {
                match op {
                    SetOperator::Union | SetOperator::Except | SetOperator::Intersect => {}
                    SetOperator::Minus => return refused("MINUS"),
                }
                match (op, set_quantifier) {
                    (_, SetQuantifier::None) | (SetOperator::Union, SetQuantifier::All) => {}
                    _ => return refused("this kind of UNION, EXCEPT or INTERSECT"),
                }
                self.body(left)?;
                self.body(right)
            }
            SetExpr::Values(values) => {
                let Values {
                    explicit_row,
                    value_keyword,
                    rows,
                } = values;
                if *explicit_row || *value_keyword {
                    return refused("this kind of VALUES");
                }
                rows.iter().try_for_each(|row| self.exprs(&row.content))
            }
            SetExpr::Query(_) => refused("a query in parentheses as a part of another"),
            SetExpr::Insert(_)
            | SetExpr::Update(_)
            | SetExpr::Delete(_)
            | SetExpr::Merge(_)
            | SetExpr::Table(_) => refused("anything but SELECT"),
        }
    }

    fn select(&mut self, select: &Select) -> Result<(), SqlError> {
        let Select {
            select_token: _,
            optimizer_hints,
            distinct,
            select_modifiers,
            top,
            top_before_distinct: _,
            projection,
            exclude,
            into,
            from,
            lateral_views,
            prewhere,
            selection,
            connect_by,
            group_by,
            cluster_by,
            distribute_by,
            sort_by,
            having,
            named_window,
            qualify,
            window_before_qualify: _,
            value_table_mode,
            flavor,
        } = select;
        empty(optimizer_hints, "an optimizer hint")?;
        absent(select_modifiers, "a modifier of SELECT")?;
        absent(top, "TOP")?;
        absent(exclude, "EXCLUDE")?;
        absent(into, "INTO")?;
        empty(lateral_views, "LATERAL")?;
        absent(prewhere, "PREWHERE")?;
        empty(connect_by, "CONNECT BY")?;
        empty(cluster_by, "CLUSTER BY")?;
        empty(distribute_by, "DISTRIBUTE BY")?;
        empty(sort_by, "SORT BY")?;
        absent(qualify, "QUALIFY")?;
        absent(value_table_mode, "SELECT AS")?;
        match flavor {
            SelectFlavor::Standard => {}
            SelectFlavor::FromFirst | SelectFlavor::FromFirstNoSelect => {
                return refused("FROM before SELECT");
            }
        }
        match distinct {
            None | Some(Distinct::All | Distinct::Distinct) => {}
            Some(Distinct::On(_)) => return refused("DISTINCT ON"),
        }
        from.iter()
            .try_for_each(|tables| self.table_with_joins(tables))?;
        projection
            .iter()
            .try_for_each(|item| self.select_item(item))?;
        selection
            .iter()
            .chain(having)
            .try_for_each(|expr| self.expr(expr))?;
        self.group_by(group_by)?;
        for NamedWindowDefinition(name, window) in named_window {
            names::check_reserved(name)?;
            match window {
                NamedWindowExpr::NamedWindow(name) => names::check_reserved(name)?,
                NamedWindowExpr::WindowSpec(window) => self.window(window)?,
            }
        }
        Ok(())
    }

    fn group_by(&mut self, group_by: &GroupByExpr) -> Result<(), SqlError> {
        match group_by {
            GroupByExpr::All(_) => refused("GROUP BY ALL"),
            GroupByExpr::Expressions(exprs, modifiers) => {
                empty(modifiers, "a modifier of GROUP BY")?;
                self.exprs(exprs)
            }
        }
    }

    fn select_item(&mut self, item: &SelectItem) -> Result<(), SqlError> {
        match item {
            SelectItem::UnnamedExpr(expr) => self.expr(expr),
            SelectItem::ExprWithAlias { expr, alias } => {
                self.names.declare(alias)?;
                self.expr(expr)
            }
            SelectItem::ExprWithAliases { .. } => refused("a list of aliases"),
            SelectItem::Wildcard(options) => plain_wildcard(options),
            SelectItem::QualifiedWildcard(kind, options) => {
                plain_wildcard(options)?;
                match kind {
                    SelectItemQualifiedWildcardKind::ObjectName(name) => {
                        self.names.use_qualified(single(name)?, None)
                    }
                    SelectItemQualifiedWildcardKind::Expr(_) => refused("a wildcard of a value"),
                }
            }
        }
    }

    fn table_with_joins(&mut self, tables: &TableWithJoins) -> Result<(), SqlError> {
        let TableWithJoins { relation, joins } = tables;
        self.table_factor(relation)?;
        for join in joins {
            let Join {
                relation,
                global,
                join_operator,
            } = join;
            if *global {
                return refused("GLOBAL");
            }
            self.table_factor(relation)?;
            match join_operator {
                JoinOperator::Join(constraint)
                | JoinOperator::Inner(constraint)
                | JoinOperator::Left(constraint)
                | JoinOperator::LeftOuter(constraint)
                | JoinOperator::Right(constraint)
                | JoinOperator::RightOuter(constraint)
                | JoinOperator::FullOuter(constraint)
                | JoinOperator::CrossJoin(constraint) => self.join_constraint(constraint)?,
                _ => return refused("this kind of JOIN"),
            }
        }
        Ok(())
    }

    fn join_constraint(&mut self, constraint: &JoinConstraint) -> Result<(), SqlError> {
        match constraint {
            JoinConstraint::On(expr) => self.expr(expr),
            JoinConstraint::Using(columns) => columns
                .iter()
                .try_for_each(|column| self.names.use_column(single(column)?)),
            JoinConstraint::UsingAlias(..) => refused("an alias of USING"),
            JoinConstraint::Natural | JoinConstraint::None => Ok(()),
        }
    }

    fn table_factor(&mut self, factor: &TableFactor) -> Result<(), SqlError> {
        match factor {
            TableFactor::Table {
                name,
                alias,
                args,
                with_hints,
                version,
                with_ordinality,
                partitions,
                json_path,
                sample,
                index_directives,
                inheritance,
            } => {
                if args.is_some() {
                    return Err(SqlError::new(format!(
                        "`{name}(…)`: table functions are not offered"
                    )));
                }
                empty(with_hints, "a hint")?;
                absent(version, "a version of a table")?;
                empty(partitions, "PARTITION")?;
                absent(json_path, "a path")?;
                absent(sample, "TABLESAMPLE")?;
                empty(index_directives, "INDEXED BY")?;
                absent(inheritance, "ONLY")?;
                if *with_ordinality {
                    return refused("WITH ORDINALITY");
                }
                self.table(name, alias.as_ref())
            }
            TableFactor::Derived {
                lateral,
                subquery,
                alias,
                sample,
            } => {
                if *lateral {
                    return refused("LATERAL");
                }
                absent(sample, "TABLESAMPLE")?;
                if let Some(alias) = alias {
                    self.names.declare_qualifier(plain_alias(alias)?)?;
                }
                self.query(subquery)
            }
            TableFactor::NestedJoin {
                table_with_joins,
                alias,
            } => {
                if let Some(alias) = alias {
                    self.names.declare_qualifier(plain_alias(alias)?)?;
                }
                self.table_with_joins(table_with_joins)
            }
            _ => refused("anything but tables, subqueries and joins after FROM"),
        }
    }

    fn order_by(&mut self, order_by: &OrderBy) -> Result<(), SqlError> {
        let OrderBy { kind, interpolate } = order_by;
        absent(interpolate, "INTERPOLATE")?;
        match kind {
            OrderByKind::All(_) => refused("ORDER BY ALL"),
            OrderByKind::Expressions(exprs) => self.order_by_exprs(exprs),
        }
    }

    pub(super) fn order_by_exprs(&mut self, exprs: &[OrderByExpr]) -> Result<(), SqlError> {
        for OrderByExpr {
            expr,
            options,
            with_fill,
        } in exprs
        {
            absent(with_fill, "WITH FILL")?;
            match options.sort {
                None | Some(OrderBySort::Asc | OrderBySort::Desc) => {}
                Some(OrderBySort::Using(_)) => return refused("ORDER BY USING"),
            }
            self.expr(expr)?;
        }
        Ok(())
    }

    pub(super) fn exprs(&mut self, exprs: &[Expr]) -> Result<(), SqlError> {
        exprs.iter().try_for_each(|expr| self.expr(expr))
    }
}

/// The only part of a name.
pub(super) fn single(name: &ObjectName) -> Result<&Ident, SqlError> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] => Ok(name),
        _ => Err(SqlError::new(format!(
            "`{name}`: a table is named by its own name, without a database before it"
        ))),
    }
}

pub(super) fn plain_alias(alias: &TableAlias) -> Result<&Ident, SqlError> {
    let TableAlias {
        explicit: _,
        name,
        columns,
        at,
    } = alias;
    empty(columns, "a list of columns after an alias")?;
    absent(at, "AT")?;
    Ok(name)
}

fn plain_wildcard(options: &WildcardAdditionalOptions) -> Result<(), SqlError> {
    let WildcardAdditionalOptions {
        wildcard_token: _,
        opt_ilike,
        opt_exclude,
        opt_except,
        opt_replace,
        opt_rename,
        opt_alias,
    } = options;
    absent(opt_ilike, "ILIKE")?;
    absent(opt_exclude, "EXCLUDE")?;
    absent(opt_except, "EXCEPT after a wildcard")?;
    absent(opt_replace, "REPLACE after a wildcard")?;
    absent(opt_rename, "RENAME")?;
    absent(opt_alias, "an alias of a wildcard")
}
