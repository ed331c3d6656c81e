"""Records and verdict to text, JSON and other forms for people and programs."""
