"""Questions in the user's own words: retrieval, follow-ups, a conversation. No model, no net."""
