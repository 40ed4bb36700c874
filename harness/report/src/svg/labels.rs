//! Places for labels beside points, so that none lies on another or on a point.

/// Width of a character of the small text of a picture, in pixels: its widest digit.
const CHARACTER: f64 = 6.6;

/// Height of a line of it.
const LINE: f64 = 12.0;

/// Distances from the point that are tried, in pixels.
const REACHES: [f64; 7] = [10.0, 18.0, 28.0, 40.0, 54.0, 70.0, 88.0];

/// Directions that are tried.
const DIRECTIONS: usize = 16;

/// An upright box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Area {
    fn around(x: f64, y: f64, reach_x: f64, reach_y: f64) -> Area {
        Area {
            left: x - reach_x,
            top: y - reach_y,
            right: x + reach_x,
            bottom: y + reach_y,
        }
    }

    fn meets(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn holds(&self, other: &Area) -> bool {
        self.left <= other.left
            && self.top <= other.top
            && other.right <= self.right
            && other.bottom <= self.bottom
    }
}

/// From one point to another.
type Line = ((f64, f64), (f64, f64));

/// The middle of each label, in the order of the points; absent where there is no room within
/// reach. Points are `(x, y, text)`; no label leaves `bounds` or lies on a line, each the corners
/// of a box of no width or no height.
pub(crate) fn place(
    points: &[(f64, f64, &str)],
    lines: &[Line],
    bounds: Area,
) -> Vec<Option<(f64, f64)>> {
    let mut taken: Vec<Area> = points
        .iter()
        .map(|(x, y, _)| Area::around(*x, *y, 6.0, 6.0))
        .collect();
    taken.extend(lines.iter().map(|(from, to)| Area {
        left: from.0.min(to.0) - 1.0,
        top: from.1.min(to.1) - 1.0,
        right: from.0.max(to.0) + 1.0,
        bottom: from.1.max(to.1) + 1.0,
    }));
    let mut places = Vec::new();
    for (x, y, text) in points {
        let half = text.chars().count() as f64 * CHARACTER / 2.0 + 1.0;
        let tried = REACHES.iter().flat_map(|reach| {
            (0..DIRECTIONS).map(move |n| {
                // Up to the right first, then by turns to both sides.
                let turn = (n.div_ceil(2)) as f64 * if n % 2 == 0 { 1.0 } else { -1.0 };
                let angle = (turn / DIRECTIONS as f64 - 0.125) * std::f64::consts::TAU;
                let (across, down) = (angle.cos(), angle.sin());
                (x + across * (reach + half - 4.0), y + down * reach)
            })
        });
        let free = |(x, y): &(f64, f64)| {
            let own = Area::around(*x, *y, half, LINE / 2.0);
            bounds.holds(&own) && !taken.iter().any(|other| other.meets(&own))
        };
        let found = tried.into_iter().find(|place| free(place));
        taken.extend(found.map(|(x, y)| Area::around(x, y, half, LINE / 2.0)));
        places.push(found);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Area = Area {
        left: 0.0,
        top: 0.0,
        right: 400.0,
        bottom: 300.0,
    };

    #[test]
    fn labels_of_points_on_one_spot_lie_apart_and_inside() {
        let points: Vec<(f64, f64, &str)> = (0..10).map(|_| (200.0, 150.0, "tb 1024")).collect();
        let line = ((0.0, 150.0), (400.0, 150.0));
        let places = place(&points, &[line], BOUNDS);
        let half = 7.0 * CHARACTER / 2.0;
        for (i, a) in places.iter().enumerate() {
            let (ax, ay) = a.expect("there is room for ten");
            assert!(BOUNDS.holds(&Area::around(ax, ay, half, 6.0)));
            assert!((ay - 150.0).abs() > 6.0, "on the line");
            for b in &places[i + 1..] {
                let (bx, by) = b.expect("there is room for ten");
                assert!((ax - bx).abs() >= 2.0 * half || (ay - by).abs() >= LINE);
            }
        }
    }

    #[test]
    fn where_there_is_no_room_there_is_no_label() {
        let small = Area {
            right: 20.0,
            bottom: 20.0,
            ..BOUNDS
        };
        assert_eq!(place(&[(10.0, 10.0, "a long label")], &[], small), [None]);
        assert!(place(&[(390.0, 10.0, "x")], &[], BOUNDS)[0].is_some());
    }
}
