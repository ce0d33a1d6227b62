"""Which of reasoning-gym's puzzles are trusted."""

# fmt: off
TRUSTED_PUZZLES = (
    "aiw", "arc_1d", "base_conversion", "bf", "binary_alternation", "caesar_cipher",
    "calendar_arithmetic", "chain_sum", "color_cube_rotation", "count_bits", "count_primes",
    "cryptarithm", "decimal_chain_sum", "dice", "emoji_mystery", "family_relationships",
    "figlet_font", "futoshiki", "group_anagrams", "jugs", "largest_island", "lcm", "leg_counting",
    "manipulate_matrix", "mini_sudoku", "modulo_grid", "needle_haystack", "number_filtering",
    "number_sequence", "palindrome_generation", "palindrome_partitioning", "path_star",
    "power_function", "products", "rectangle_count", "rotate_matrix", "sentence_reordering",
    "simple_equations", "simple_geometry", "string_manipulation", "string_splitting",
    "string_synthesis", "sudoku", "tower_of_hanoi", "tsumego", "word_sequence_reversal",
    "zebra_puzzles",
)
# fmt: on
"""Generators of reasoning-gym 0.1.25 that pass `research/gym_audit.py`."""
