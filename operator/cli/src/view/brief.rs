use lockstep_api::words::count;

/// Most rows of a table without `-o wide`.
const ROWS: usize = 8;

/// Rows that a table shows: all rows of a small table, and of a large one those that need attention.
#[derive(Debug)]
pub struct Brief<'a, T> {
    pub rows: Vec<&'a T>,
    left_out: usize,
    /// True if no row that needs attention is left out.
    fine: bool,
}

impl<'a, T> Brief<'a, T> {
    pub fn of(all: &'a [T], wide: bool, is_fine: impl Fn(&T) -> bool) -> Self {
        let few = wide || all.len() <= ROWS;
        let shown = |row: &&T| few || !is_fine(row);
        let mut rows: Vec<&T> = all.iter().filter(shown).collect();
        let wrong = rows.len();
        if !few {
            rows.truncate(ROWS);
        }
        Self {
            left_out: all.len() - rows.len(),
            fine: rows.len() == wrong,
            rows,
        }
    }

    /// Line about the rows that are left out, such as "29 more nodes, all ready".
    pub fn note(&self, one: &str, fine: &str) -> Option<String> {
        let more = match self.rows.len() {
            0 => count(self.left_out, one),
            _ => count(self.left_out, &format!("more {one}")),
        };
        let state = if self.fine {
            format!(", all {fine}")
        } else {
            String::new()
        };
        (self.left_out > 0).then(|| format!("{more}{state} (-o wide shows all)\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_shows_rows_that_need_attention_and_counts_the_others() {
        let shown = |all: &[i32], wide| {
            let brief = Brief::of(all, wide, |n| *n > 0);
            (brief.rows.len(), brief.note("node", "ready"))
        };
        let mut all = vec![1; 30];
        let note = |text: &str| Some(format!("{text} (-o wide shows all)\n"));
        assert_eq!(shown(&all, false), (0, note("30 nodes, all ready")));
        assert_eq!(shown(&all, true), (30, None));
        assert_eq!(shown(&all[..8], false), (8, None));
        all[7] = 0;
        assert_eq!(shown(&all, false), (1, note("29 more nodes, all ready")));
        assert_eq!(shown(&[0; 30], false), (8, note("22 more nodes")));
    }
}
