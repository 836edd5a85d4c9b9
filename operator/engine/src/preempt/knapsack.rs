//! Choosing among independent pieces so that together they make enough room for the least weight, by dynamic programming.

use std::collections::BTreeSet;

use super::{
    field::CandIx,
    relax::{FRACTION, Paying, Relaxation},
};

/// Cells of a table beyond which it is made coarser.
const CELLS: i64 = 1_000_000;
/// Claims of one piece beyond which its single claims are not options of their own.
const SMALL_PIECE: usize = 200;

/// Units of a piece up to which all its subsets are weighed.
const ENUMERABLE: usize = 8;

/// One way to evict within a piece.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    room: i64,
    weight: i128,
    units: Vec<CandIx>,
}

/// Candidates that no claim links to others.
#[derive(Default)]
struct Piece {
    units: Vec<CandIx>,
    claims: Vec<usize>,
}

/// The lightest union of choices that makes the room needed, as far as the table is fine enough to tell; nothing when no
/// union does.
pub(super) fn select(relaxation: &Relaxation, sets: &[Paying]) -> Option<Vec<CandIx>> {
    let need = relaxation.need - relaxation.base;
    let mut menus: Vec<Vec<Choice>> = Vec::new();
    for piece in pieces(relaxation) {
        let menu = menu(relaxation, &piece, sets);
        if !menu.is_empty() {
            menus.push(menu);
        }
    }
    if need <= 0 {
        return None;
    }
    // Too coarse a unit rounds room down; whoever uses the selection repairs what is missing then.
    let unit = unit_of(need, &menus);
    let width = (need + unit - 1) / unit;
    fill(&menus, width as usize, unit)
}

/// How little any answer to the relaxed question must weigh.
///
/// Pieces small enough to be enumerated are chosen exactly; what the others contribute costs at least what the prices of
/// `sets` say of them. Where the table would be too large, room is rounded in favour of the answer.
pub(super) fn lower_bound(relaxation: &Relaxation, sets: &[Paying]) -> i128 {
    bound_of_pieces(relaxation, sets, ENUMERABLE)
}

/// As [`lower_bound`], with pieces of up to so many units enumerated.
pub(super) fn bound_of_pieces(relaxation: &Relaxation, sets: &[Paying], enumerable: usize) -> i128 {
    let need = relaxation.need - relaxation.base;
    if need <= 0 || relaxation.has_cascades() {
        return 0;
    }
    let (small, large): (Vec<Piece>, Vec<Piece>) =
        pieces(relaxation).into_iter().partition(|p| p.units.len() <= enumerable);
    let menus: Vec<Vec<Choice>> = small.iter().map(|p| enumerate(relaxation, p)).collect();
    let unit = unit_of(need, &menus);
    let width = (need / unit) as usize;
    let mut best: Vec<Option<i128>> = vec![None; width + 1];
    best[0] = Some(0);
    for menu in &menus {
        let mut next = best.clone();
        for choice in menu {
            let cells = ((choice.room + unit - 1) / unit) as usize;
            for (have, so_far) in best.iter().enumerate() {
                let Some(so_far) = so_far else { continue };
                let cell = &mut next[(have + cells).min(width)];
                let weight = so_far + choice.weight;
                *cell = Some(cell.map_or(weight, |known| known.min(weight)));
            }
        }
        best = next;
    }
    let lines = lines(relaxation, &large, sets);
    let rest = |have: usize| -> Option<i128> {
        let missing = need - have as i64 * unit;
        // Less than a cell: all cells are full.
        if missing < unit {
            return Some(0);
        }
        if large.is_empty() {
            return None;
        }
        let best =
            lines.iter().map(|&(at_zero, price)| at_zero + price * i128::from(missing)).max().unwrap_or(0).max(0);
        Some((best + (1 << FRACTION) - 1) >> FRACTION)
    };
    best.iter().enumerate().filter_map(|(have, weight)| Some((*weight)? + rest(have)?)).min().unwrap_or(0)
}

/// Per price, the least that the pieces can weigh less what their room is worth: `room` of them weighs at least the sum of
/// that and the worth of `room`, at every price.
fn lines(relaxation: &Relaxation, pieces: &[Piece], sets: &[Paying]) -> Vec<(i128, i128)> {
    let line = |set: &Paying| {
        let sum: i128 = pieces
            .iter()
            .map(|piece| {
                let units: Vec<CandIx> = piece.units.iter().copied().filter(|&c| set.gone[c]).collect();
                let choice = choice(relaxation, piece, units);
                (choice.weight << FRACTION) - set.price * i128::from(choice.room)
            })
            .sum();
        (sum, set.price)
    };
    sets.iter().map(line).collect()
}

fn enumerate(relaxation: &Relaxation, piece: &Piece) -> Vec<Choice> {
    let subsets = 1u32..1 << piece.units.len();
    let of =
        |bits: u32| piece.units.iter().enumerate().filter(move |(i, _)| bits >> i & 1 == 1).map(|(_, &c)| c).collect();
    undominated(subsets.map(|bits| choice(relaxation, piece, of(bits))).collect())
}

/// `picked[menu][have]`: which choice leads from `have` cells to the best way on.
fn fill(menus: &[Vec<Choice>], width: usize, unit: i64) -> Option<Vec<CandIx>> {
    let mut best: Vec<Option<i128>> = vec![None; width + 1];
    best[0] = Some(0);
    let mut picked: Vec<Vec<(u32, u32)>> = Vec::with_capacity(menus.len());
    for menu in menus {
        let mut next = best.clone();
        let mut from: Vec<(u32, u32)> = (0..=width as u32).map(|at| (u32::MAX, at)).collect();
        for (ix, choice) in menu.iter().enumerate() {
            let cells = (choice.room / unit) as usize;
            for (have, so_far) in best.iter().enumerate() {
                let Some(so_far) = so_far else { continue };
                let at = (have + cells).min(width);
                let weight = so_far + choice.weight;
                if next[at].is_none_or(|known| weight < known) {
                    next[at] = Some(weight);
                    from[at] = (ix as u32, have as u32);
                }
            }
        }
        best = next;
        picked.push(from);
    }
    best[width]?;
    let mut at = width;
    let mut units = Vec::new();
    for (menu, from) in menus.iter().zip(&picked).rev() {
        let (ix, have) = from[at];
        if let Some(choice) = menu.get(ix as usize) {
            units.extend(&choice.units);
        }
        at = have as usize;
    }
    units.sort_unstable();
    Some(units)
}

/// What may be chosen within a piece, dominated choices left out.
fn menu(relaxation: &Relaxation, piece: &Piece, sets: &[Paying]) -> Vec<Choice> {
    let mut unions: BTreeSet<Vec<CandIx>> = BTreeSet::new();
    for set in sets {
        unions.insert(piece.units.iter().copied().filter(|&c| set.gone[c]).collect());
    }
    if piece.claims.len() <= SMALL_PIECE {
        unions.extend(piece.claims.iter().map(|&c| relaxation.claims[c].units.clone()));
    }
    unions.extend(piece.units.iter().filter(|&&c| relaxation.share[c] > 0).map(|&c| vec![c]));
    unions.remove(&Vec::new());
    if piece.units.len() <= ENUMERABLE {
        return enumerate(relaxation, piece);
    }
    undominated(unions.into_iter().map(|units| choice(relaxation, piece, units)).collect())
}

fn undominated(mut choices: Vec<Choice>) -> Vec<Choice> {
    choices.retain(|c| c.room > 0);
    // By room from the most down, each must be lighter than all that make more room.
    choices.sort_by(|a, b| b.room.cmp(&a.room).then_with(|| a.weight.cmp(&b.weight)));
    let mut lightest = None;
    choices.retain(|c| {
        let useful = lightest.is_none_or(|l| c.weight < l);
        if useful {
            lightest = Some(c.weight);
        }
        useful
    });
    choices
}

fn choice(relaxation: &Relaxation, piece: &Piece, units: Vec<CandIx>) -> Choice {
    let holds = |c: &usize| relaxation.claims[*c].units.iter().all(|u| units.binary_search(u).is_ok());
    let claimed: i64 = piece.claims.iter().filter(|c| holds(c)).map(|&c| relaxation.claims[c].room).sum();
    Choice {
        room: claimed + units.iter().map(|&u| relaxation.share[u]).sum::<i64>(),
        weight: units.iter().filter_map(|&u| relaxation.weight(u)).sum(),
        units,
    }
}

fn pieces(relaxation: &Relaxation) -> Vec<Piece> {
    let count = relaxation.share.len();
    let mut parent: Vec<usize> = (0..count).collect();
    for claim in &relaxation.claims {
        for pair in claim.units.windows(2) {
            let (a, b) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut pieces: Vec<Piece> = (0..count).map(|_| Piece::default()).collect();
    for cand in (0..count).filter(|&c| relaxation.weight(c).is_some()) {
        pieces[root(&mut parent, cand)].units.push(cand);
    }
    for (ix, claim) in relaxation.claims.iter().enumerate() {
        pieces[root(&mut parent, claim.units[0])].claims.push(ix);
    }
    pieces.retain(|p| !p.claims.is_empty() || p.units.iter().any(|&c| relaxation.share[c] > 0));
    pieces
}

fn root(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

/// The room of one cell: what divides all rooms, or a multiple of it that keeps the table small.
fn unit_of(need: i64, menus: &[Vec<Choice>]) -> i64 {
    let choices: usize = menus.iter().map(Vec::len).sum();
    let exact = menus.iter().flatten().map(|c| c.room).fold(need, gcd).max(1);
    let coarse = need.saturating_mul(choices as i64) / CELLS + 1;
    exact * ((coarse + exact - 1) / exact)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
