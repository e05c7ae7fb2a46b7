"""A local page of all runs and grids below a folder, live while they train. It only reads run folders."""
