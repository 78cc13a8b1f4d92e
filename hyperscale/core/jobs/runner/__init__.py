"""Import paths of published Hyperscale tests; everything here lives elsewhere."""
