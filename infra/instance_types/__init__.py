"""What is known of the clouds' instance types: their sizes, what they may be used for, and their prices.

`catalog` joins the tables in `facts/`, the file `by_hand.yaml`, and the answers of clouds that `cache` keeps.
"""
