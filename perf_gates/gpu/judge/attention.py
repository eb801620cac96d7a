def checks(plan):
    return []
